"""What a restore does to a Delta table that a sink writes: take it back to a version, or begin as a copy of one.

Nothing is rewritten: a table goes back by a new commit that names the files of the old version again, so whoever reads
it meanwhile sees one version or the other. A copy is built beside its place and moved there when it is whole.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from strobe.hosts.shared.durable import fsync
from strobe.hosts.spark.channel.log import LOG
from strobe.hosts.spark.channel.schema import channel_schema
from strobe.hosts.spark.channel.writer import ChannelWriter
from strobe.hosts.spark.connectors.base import SinkContext, SinkFate, SinkOutlook
from strobe.hosts.spark.connectors.delta.evolving import Growth, check_growth, growth, has_evolved
from strobe.hosts.spark.connectors.delta.files import others_since, table_files, why_unreadable
from strobe.hosts.spark.connectors.delta.rows import check_fit
from strobe.hosts.spark.connectors.delta.table import is_plain
from strobe.hosts.spark.connectors.origin import below, damaged, place_in, position_number, why_foreign
from strobe.model.cut import Json
from strobe.model.errors import Failed, Misuse, StrobeError
from strobe.store.tree import copy_regular, open_regular

__all__ = [
    "copy_appended", "copy_table", "outlook", "recorded", "take_back", "why_not_visible",
    "why_unreachable",
]  # fmt: skip

_CONSTRAINT: Final = "delta.constraints."
_END: Final = b"PAR1"
_LATER: Final = "Choose a later snapshot; keep VACUUM and log cleanup away from what a retained snapshot needs."


def recorded(position: Json) -> tuple[Path, int] | None:
    """Where the table was at the snapshot, and the version that has what the snapshot made visible."""
    # Positions of other sinks may have a path and a version, too: only this sink's has letters as well.
    if not isinstance(position, dict) or not {"letters", "version"} <= position.keys():
        return None
    path = place_in(position)
    if path is None:
        return None
    version = position_number(position["version"], "version")
    app, through = position.get("app"), position.get("through")
    if isinstance(app, str) and through is not None:
        version = _version_through(path, app, position_number(through, "batch"), version)
    return path, version


def _version_through(path: Path, app: str, through: int, version: int) -> int:
    """A sink that delivers on snapshot says where it stands before its part is committed. That commit is the first
    behind `version` with the highest mark up to batch `through`."""
    newest, behind = -2, version
    for entry in sorted((path / LOG).glob("*.json")):
        if not entry.stem.isdigit() or int(entry.stem) <= version:
            continue
        if int(entry.stem) != behind + 1:
            raise Failed(
                f"{path} cannot be read as it was at version {behind + 1}: that entry of its log is gone.",
                untouched="Nothing was changed.",
                next=_LATER,
            )
        behind += 1
        try:
            for line in _lines(entry):
                mark = json.loads(line).get("txn") if b'"txn"' in line else None
                if mark is not None and mark["appId"] == app and newest < mark["version"] <= through:
                    newest, found = mark["version"], int(entry.stem)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise damaged(f"{entry} cannot be read ({error}).") from error
    return version if newest < 0 else found


def _lines(entry: Path) -> list[bytes]:
    with open_regular(entry) as file:
        return file.read().splitlines()


def why_not_visible(position: Json, what: str) -> StrobeError | None:
    """Whether the job of the snapshot has yet to commit what the snapshot names: a copy would be without it."""
    was = recorded(position)
    if was is None or not isinstance(position.get("app"), str) or not DeltaTable.is_deltatable(str(was[0])):
        return None
    mark = DeltaTable(str(was[0])).transaction_version(position["app"])
    if position["through"] < 0 or (mark is not None and mark >= position["through"]):
        return None
    return Failed(
        f"{what} cannot begin as a copy of {was[0]}: what the snapshot names is not visible there yet.",
        untouched="Nothing was changed.",
        next="It will be, a moment after the snapshot is complete: try again. `strobe transactions JOB` of the job "
        "that writes there says what it waits for.",
    )


def outlook(
    where: Path,
    what: str,
    *,
    keyed: bool,
    position: Json,
    context: SinkContext,
    fork: bool,
    again: bool,
    evolves: bool = False,
) -> SinkOutlook:
    there = DeltaTable.is_deltatable(str(where))
    origin = place_in(position) if isinstance(position, dict) and "letters" in position else None
    if origin is not None and origin != where and os.path.lexists(origin):
        foreign = why_foreign(origin, what, context)
        if foreign is not None:  # before anything is read there
            return SinkOutlook(SinkFate.COPIED, f"{where} would start as a copy of {origin}", foreign)
    was = recorded(position)
    if fork:
        return _of_fork(where, what, there and not again, was, context, keyed, evolves, copied=there)
    if was is None:
        warning = f"{what} is not part of the snapshot: what it holds stays." if there else ""
        return SinkOutlook(SinkFate.KEPT if there else SinkFate.EMPTY, "it is not part of the snapshot", None, warning)
    path, version = was
    if path != where:
        return _of_fork(where, what, there and not again, was, context, keyed, evolves, copied=there)
    if not there:
        gone = Failed(
            f"{what} is gone: {where} is no longer a Delta table, so it cannot go back to version {version}.",
            untouched="Nothing was changed.",
            next="Put it back, or give the sink another path: it then starts empty.",
        )
        return SinkOutlook(SinkFate.ROLLED_BACK, f"to version {version}", gone)
    problem = why_unreachable(path, version) or why_unreadable(path, what)
    problem = problem or _fits(was, context, keyed, evolves, what)
    warning = "" if problem is not None else others_since(path, version)
    return SinkOutlook(SinkFate.ROLLED_BACK, f"{where} goes back to version {version}", problem, warning)


def _of_fork(
    where: Path,
    what: str,
    taken: bool,
    was: tuple[Path, int] | None,
    context: SinkContext,
    keyed: bool,
    evolves: bool,
    copied: bool,
) -> SinkOutlook:
    """A fork's table begins as a copy, if there is something to copy."""
    if was is not None and was[0] == where and copied:
        clash = Misuse(
            f"Stage {context.stage!r} would write to {where}, which is where the job of the snapshot writes: the two "
            "would disturb each other.",
            untouched="Nothing was changed.",
            next="Say where the new job's tables are to be: --base DIR moves every relative path there.",
        )
        return SinkOutlook(SinkFate.COPIED, str(where), clash)
    if taken:
        clash = Misuse(
            f"Stage {context.stage!r} would begin to write to {where}, but there is a table already.",
            untouched="Nothing was changed.",
            next="Move it away, or choose another place: --base DIR moves every relative path there.",
        )
        return SinkOutlook(SinkFate.COPIED, str(where), clash)
    if was is None:
        return SinkOutlook(SinkFate.EMPTY, f"{where} is not part of the snapshot")
    path, version = was
    reason = None if copied else why_unreachable(path, version, copied=True)
    if reason is not None:
        warning = f"{what} starts empty, without the rows from before the snapshot: {reason.what}"
        return SinkOutlook(SinkFate.EMPTY, f"{where}: version {version} of {path} cannot be read", None, warning)
    problem = None if copied else why_unreadable(path, what) or _fits(was, context, keyed, evolves, what)
    return SinkOutlook(SinkFate.COPIED, f"{where} starts as a copy of {path} at version {version}", problem)


def why_unreachable(path: Path, version: int, *, copied: bool = False) -> StrobeError | None:
    """Why the table cannot be read as it was at that version; None if every file of it is still there, as long as the
    log says, and ends as Parquet does. Rows are not read. `copied`: links in the table are refused as well, since a
    copy does not follow them."""
    try:
        if not DeltaTable.is_deltatable(str(path)):
            raise Failed(f"{path} is not a Delta table.")
        for named in table_files(path, version):
            file = path / named.path
            if not file.is_file():
                raise Failed(f"{file} is gone.")
            if not below(file, path):
                raise Failed(f"{file} leads out of the table.")
            _check_whole(file, named.size, copied=copied)
    except (StrobeError, DeltaError, OSError) as error:
        said = error.what if isinstance(error, StrobeError) else str(error).partition("\n")[0]
        return Failed(
            f"{path} cannot be read as it was at version {version}: {said}",
            untouched="Nothing was changed.",
            next=_LATER,
        )
    return None


def _check_whole(file: Path, size: int, *, copied: bool) -> None:
    with open_regular(file) if copied else file.open("rb") as opened:
        found = os.fstat(opened.fileno()).st_size
        opened.seek(-min(len(_END), found), os.SEEK_END)
        end = opened.read()
    if found != size:
        raise Failed(f"{file} has {found:,} bytes, and {size:,} by the table's log.")
    if end != _END:
        raise Failed(f"{file} does not end as a Parquet file does.")


def _fits(was: tuple[Path, int], context: SinkContext, keyed: bool, evolves: bool, what: str) -> StrobeError | None:
    """Why the table, as it was at that version, cannot take the stage's rows."""
    path, version = was
    table = DeltaTable(str(path), version=max(version, 0))
    there, now = (
        StructType.fromJson(json.loads(table.schema().to_json())),
        channel_schema(context.schema, context.stage),
    )
    if there == now:
        return None
    try:
        found = growth(there, now) if evolves else Growth()
        check_growth(table, found, what, context.stage)
        if evolves or keyed or has_evolved(path) or not is_plain(path):
            grown = found.applied(there)
            check_fit({f.name: f for f in to_arrow_schema(grown, timezone="UTC")}, context, what)
            return None
    except StrobeError as error:
        return error
    return Misuse(
        f"Stage {context.stage!r} now returns {now.simpleString()}, but {what} holds {there.simpleString()}.",
        untouched="Nothing was changed.",
        next='Return the same columns as before; or let the table get new columns, with DeltaSink(…, schema="evolve"); '
        "or write to another table.",
    )


def copy_appended(source: Path, version: int, where: Path, context: SinkContext) -> None:
    def build(place: Path) -> None:
        writer = ChannelWriter(
            place, context.schema, job=context.job, producer=context.stage, timeline=context.timeline,
            incarnation=context.incarnation,
        )  # fmt: skip
        files = table_files(source, version)
        for file in files:
            target = place / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            if not below(source / file.path, source):
                raise Failed(f"{source / file.path} leads out of the table.", untouched="The original is as it was.")
            copy_regular(source / file.path, target)
        if files:
            writer.append_restored(files, version)
        writer.sync(writer.log.head)
        writer.close()

    _in_place(where, build)


def take_back(where: Path, version: int) -> None:
    """Make the table have the files of `version` again."""
    table = DeltaTable(str(where))
    if set(table.file_uris()) != set(DeltaTable(str(where), version=version).file_uris()):
        table.restore(version)


def copy_table(source: Path, version: int, where: Path) -> None:
    def build(place: Path) -> None:
        for file in (source / f.path for f in table_files(source, version)):
            if not below(file, source):
                raise Failed(f"{file} leads out of the table.", untouched="The original is as it was.")
        table = DeltaTable(str(source), version=version)
        about = table.metadata()
        rules = {k: v for k, v in about.configuration.items() if k.startswith(_CONSTRAINT) and v}
        DeltaTable.create(
            str(place),
            table.schema(),
            mode="error",
            partition_by=list(about.partition_columns),
            configuration={k: v for k, v in about.configuration.items() if k not in rules},
        )
        for name, expression in rules.items():
            DeltaTable(str(place)).alter.add_constraint({name.removeprefix(_CONSTRAINT): expression})
        write_deltalake(str(place), table.to_pyarrow_dataset().scanner().to_reader(), mode="append")
        for directory, _, names in os.walk(place):
            for name in (*names, "."):
                fsync(Path(directory, name))

    _in_place(where, build)


def _in_place(where: Path, build: Callable[[Path], None]) -> None:
    """Put the copy in place, whole or not at all. If one is there already, an earlier attempt that was killed has made
    it."""
    if DeltaTable.is_deltatable(str(where)):
        return
    place = where.with_name(f".{where.name}.restoring")
    try:
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        build(place)
        place.rename(where)
        fsync(where.parent)
    except (OSError, DeltaError) as error:
        raise Failed(
            f"The copy of a table to {where} failed: {error}.",
            untouched="The original is as it was.",
            next="Make room there, and run the same command again.",
        ) from error

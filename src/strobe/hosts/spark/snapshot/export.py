"""A snapshot as Parquet files that any reader understands: the state of every stage, and the rows in flight.

State is read by Spark's own reader from the stage's files, laid out in a scratch directory, so it is what the operator
itself would see. Keys and values are structs there; here each of their fields is a column, `key_…` and `value_…`. Rows
in flight are Parquet already and are copied as they are. `contents.json` says what each file is.
"""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructField, StructType

from strobe.hosts.spark.channel.log import ChannelLog
from strobe.hosts.spark.checkpoint.layout import lay_out_stage
from strobe.hosts.spark.snapshot.savepoint_content import content_of, schema_from
from strobe.model.errors import Failed, Misuse
from strobe.model.ids import ChannelId
from strobe.model.paths import quoted_name
from strobe.store.codec import root_of
from strobe.store.locate import Located
from strobe.store.manifest import NOTHING, ChannelRecord, Manifest
from strobe.store.tree import copy_regular

__all__ = ["CONTENTS", "Exported", "export_snapshot"]

CONTENTS: Final = "contents.json"
_JOIN: Final = "symmetricHashJoin"
_README: Final = """# {kind} {snapshot} of job {job}, as Parquet

Written by `strobe inspect --export`. It is a copy to look at: nothing can be restored from it.

- `state/<stage>/<operator>/`: the state of a stage's operator, one row per entry. `key_…` are the fields of the key,
  `value_…` those of the value, `partition` is Spark's state partition.
- `in-flight/<channel>/`: rows that the channel's producer had written and some stage had not read yet, one file or more
  for each batch of the producer, named after the batch's position in the channel.
- `contents.json`: each of these with what it is, and how many rows it has. For rows in flight, `to` names the stages
  that had yet to read them.

    duckdb -c "select * from '{example}'"
"""


@dataclass(frozen=True, slots=True)
class Exported:
    """One set of rows. `error` says why it could not be written; then there is nothing at `path`."""

    path: str
    kind: str
    of: str
    rows: int
    operator: str = ""
    to: tuple[str, ...] = ()
    error: str = ""


def export_snapshot(found: Located, directory: Path, home: Path, spark: SparkSession) -> tuple[Exported, ...]:
    """Write what the snapshot holds to `directory`, which must not exist or be empty. Says what was written."""
    manifest = found.load()
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise Misuse(
            f"The export cannot go to {directory}: it is not an empty directory.",
            untouched="Nothing was written.",
            next="Name a directory that does not exist yet.",
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        written = [*_in_flight(found, manifest, directory, home), *_states(found, manifest, directory, spark)]
        _describe(manifest, written, directory)
    except OSError as error:
        raise Failed(
            f"The export to {directory} failed: {error.strerror or error}.",
            untouched="The snapshot is untouched.",
            next="Make room there, or choose another directory.",
        ) from error
    return tuple(written)


def _describe(manifest: Manifest, written: list[Exported], directory: Path) -> None:
    contents = {
        "job": manifest.job,
        "snapshot": manifest.snapshot,
        "kind": manifest.kind.value,
        "completed": manifest.completed,
        "root": root_of(manifest),
        "contents": [asdict(each) for each in written],
    }
    (directory / CONTENTS).write_text(json.dumps(contents, indent=1) + "\n")
    example = next((e.path for e in written if not e.error), "state/…")
    readme = _README.format(kind=manifest.kind.value, snapshot=manifest.snapshot, job=manifest.job, example=example)
    (directory / "README.md").write_text(readme)


# ── rows in flight ──────────────────────────────────────────────────────────────────────────────────────────────────


def _in_flight(found: Located, manifest: Manifest, directory: Path, home: Path) -> Iterator[Exported]:
    for channel, record in manifest.channels.items():
        place = f"in-flight/{channel}"
        files = _copied(found, manifest, channel, directory) if record.location is None else _from_log(record, home)
        for version, path, rows in files:
            name = f"{version:020d}-{path.name}"
            (directory / place).mkdir(parents=True, exist_ok=True)
            copy_regular(path, directory / place / name)
            to = tuple(c for c, flight in record.in_flight.items() if flight.after < version <= flight.through)
            yield Exported(f"{place}/{name}", "in flight", channel, rows, to=to)
        shutil.rmtree(directory / ".rows", ignore_errors=True)


def _copied(found: Located, manifest: Manifest, channel: ChannelId, directory: Path) -> list[tuple[int, Path, int]]:
    """Read the rows from a savepoint, which holds them itself."""
    record = manifest.channels[channel]
    scratch = directory / ".rows"
    found.store.lay_out(manifest, f"channels/{channel}/content/", scratch)
    commits = content_of(channel, record, found.where)
    return [(c.version, scratch / path, rows) for c in commits for path, rows, _ in c.files]


def _from_log(record: ChannelRecord, home: Path) -> list[tuple[int, Path, int]]:
    """Read the rows from the job's own channel, which a checkpoint only refers to."""
    log = ChannelLog(home / str(record.location))
    first = min((flight.after for flight in record.in_flight.values()), default=0)
    if record.barrier is None or first >= record.barrier:
        return []
    return [(c.version, log.path / f.path, f.rows) for c in log.commits(first, record.barrier) for f in c.files]


# ── state ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _states(found: Located, manifest: Manifest, directory: Path, spark: SparkSession) -> Iterator[Exported]:
    for uid, node in manifest.nodes.items():
        if node.batch in (None, NOTHING) or not any(path.startswith("state/") for path in node.files):
            continue
        with tempfile.TemporaryDirectory(prefix="strobe-export-") as scratch:
            lay_out_stage(found, manifest, uid, Path(scratch))
            try:
                stores = list(_stores(spark, scratch))
            except Exception as error:  # nor one stage's that of the others
                yield Exported(f"state/{uid}", "state", uid, 0, error=_why(error))
                continue
            for name, operator, options in stores:
                place = f"state/{uid}/{quoted_name(name)}"
                try:
                    frame = flatten(spark.read.format("statestore").options(**options).load(scratch))
                    frame.write.parquet(str(directory / place))
                    rows = spark.read.parquet(str(directory / place)).count()
                except Exception as error:  # one operator's state must not keep the others from being seen
                    shutil.rmtree(directory / place, ignore_errors=True)
                    yield Exported(place, "state", uid, 0, operator, error=_why(error))
                    continue
                for left in (p for p in (directory / place).iterdir() if p.name.startswith((".", "_"))):
                    left.unlink()
                yield Exported(f"{place}/*.parquet", "state", uid, rows, operator)


def _why(error: Exception) -> str:
    """The first line of the cause; py4j's own words only say which call has failed."""
    if isinstance(error, Py4JJavaError):
        cause = error.java_exception
        while (deeper := cause.getCause()) is not None:
            cause = deeper
        return f"{cause.toString()}".partition("\n")[0]
    return str(error).partition("\n")[0]


def _stores(spark: SparkSession, checkpoint: str) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    """Everything that can be read of a checkpoint's state: (a name, the operator's, the reader's options)."""
    seen: set[int] = set()
    for row in spark.read.format("state-metadata").load(checkpoint).select("*").collect():
        if row.operatorId in seen:
            continue
        number, operator = str(row.operatorId), str(row.operatorName)
        name, base = f"{number}-{operator}", {"operatorId": number}
        if operator.startswith(_JOIN):
            seen.add(row.operatorId)
            for side in ("left", "right"):
                yield f"{name}-{side}", operator, {**base, "joinSide": side}
        elif variables := _variables(row):
            seen.add(row.operatorId)
            for variable in variables:
                timers = variable.startswith("$")
                chosen = {"readRegisteredTimers": "true"} if timers else {"stateVarName": variable}
                yield f"{name}-{'timers' if timers else variable}", operator, {**base, **chosen}
        else:
            store = str(row.stateStoreName)
            yield f"{name}-{store}" if store != "default" else name, operator, {**base, "storeName": store}


def _variables(row: Row) -> list[str]:
    """The state variables of transformWithState; its timers are among them under a name with a dollar sign."""
    text = row.asDict().get("operatorProperties")
    if not text:
        return []
    found = json.loads(text).get("stateVariables", [])
    return [str(v["stateName"]) for v in (json.loads(found) if isinstance(found, str) else found)]


def flatten(frame: DataFrame) -> DataFrame:
    """Each field of each struct a column of its own: `key_account`, `value_sum`. Of two fields with one name, as two
    sums have, the second is `value_sum_2`."""
    columns = []
    for field in schema_from(json.loads(frame._jdf.schema().json())).fields:  # whose classes Spark would import
        if isinstance(field.dataType, StructType):
            names = _told_apart([f.name for f in field.dataType.fields])
            fields = zip(names, field.dataType.fields, strict=True)
            whole = frame[field.name].cast(StructType([StructField(name, f.dataType) for name, f in fields]))
            columns += [whole[name].alias(f"{field.name}_{name}") for name in names]
        else:
            columns.append(frame[field.name].alias("partition" if field.name == "partition_id" else field.name))
    return frame.select(*columns)


def _told_apart(names: Sequence[str]) -> list[str]:
    found: dict[str, str] = {}
    for name in names:
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        free = next(n for n in itertools.chain([name], numbered) if n.lower() not in found)
        found[free.lower()] = free
    return list(found.values())

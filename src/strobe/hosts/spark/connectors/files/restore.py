"""Which batches of which timelines a directory of files shows, and how it goes back to what it showed at a snapshot.

A job's history is a tree: a restore leaves a line and begins another. The *lineage* of a line is short: for each
timeline that it goes through, the last batch that belongs to it. What belongs to no timeline of the lineage is moved
aside, not deleted, for a later restore may choose the line that it is on.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from strobe.hosts.shared.durable import fsync, write_durably
from strobe.hosts.spark.connectors.base import SinkContext, SinkFate, SinkOutlook
from strobe.hosts.spark.connectors.origin import damaged, place_in, position_number, why_foreign
from strobe.model.cut import Json
from strobe.model.errors import Damaged, Failed, Misuse
from strobe.store.tree import copy_regular

__all__ = ["HIDDEN", "LINEAGE", "Lineage", "copy", "directory_name", "outlook", "recorded", "shown", "take_back"]

HIDDEN: Final = ".strobe"
LINEAGE: Final = "lineage"  # no suffix: others read a directory of JSON files by that
_LEFT: Final = "left"
_BATCH: Final = re.compile(r"batch=([0-9]+)-([0-9]+)")


def directory_name(timeline: int, batch: int | None = None) -> str:
    return f"batch={timeline}" if batch is None else f"batch={timeline}-{batch:08d}"


def shown(where: Path) -> list[tuple[int, int]]:
    """The batches that are visible, as (timeline, batch)."""
    names = os.listdir(where) if where.is_dir() else []
    return sorted((int(m[1]), int(m[2])) for name in names if (m := _BATCH.fullmatch(name)))


@dataclass(frozen=True)
class Lineage:
    """For each timeline of a line, the last batch that belongs to it."""

    limits: tuple[tuple[int, int], ...] = ()

    def __contains__(self, batch: object) -> bool:
        return isinstance(batch, tuple) and any(batch[0] == line and batch[1] <= last for line, last in self.limits)

    def without(self, timeline: int) -> Lineage:
        return Lineage(tuple(one for one in self.limits if one[0] != timeline))

    def extended(self, timeline: int, last: int) -> Lineage:
        return Lineage((*self.without(timeline).limits, (timeline, last)))

    def as_json(self) -> Json:
        return [list(one) for one in self.limits]

    @staticmethod
    def read(path: Path) -> Lineage:
        try:
            return Lineage(_decode(path.read_bytes()))
        except FileNotFoundError:
            return Lineage()
        except msgspec.MsgspecError as error:
            raise Damaged(
                f"{path} does not say which batches belong to the sink: {error}.",
                untouched="Its rows are as they were.",
                next="Put the file back from a backup, or give the sink another directory.",
            ) from error

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, json.dumps(self.as_json()))


_decode: Final = msgspec.json.Decoder(tuple[tuple[int, int], ...]).decode


@dataclass(frozen=True)
class Was:
    """What a sink said at a snapshot: where its files were, and which of them belong to it."""

    path: Path
    lineage: Lineage

    def places(self) -> Iterator[Path]:
        """Where the directories are now that belong to it: visible, or moved aside."""
        for above in (self.path, self.path / HIDDEN / _LEFT):
            yield from (above / directory_name(*batch) for batch in shown(above) if batch in self.lineage)


def recorded(position: Json) -> Was | None:
    if not isinstance(position, dict) or "lineage" not in position:
        return None
    path, lines = place_in(position), position["lineage"]
    if path is None:
        return None
    if not isinstance(lines, list) or not all(isinstance(line, list) and len(line) == 2 for line in lines):
        raise damaged(f"{lines!r:.80} is not a list of timelines and batches.")
    return Was(path, Lineage(tuple((position_number(t, "timeline"), position_number(b, "batch")) for t, b in lines)))


def outlook(where: Path, what: str, position: Json, context: SinkContext, *, fork: bool, again: bool) -> SinkOutlook:
    was, there = recorded(position), bool(shown(where))
    if was is None:
        warning = f"{what} are not part of the snapshot: what is there stays." if there else ""
        return SinkOutlook(SinkFate.KEPT if there else SinkFate.EMPTY, "not part of the snapshot", None, warning)
    if was.path == where and not fork:
        kept, behind = len(list(was.places())), len([b for b in shown(where) if b not in was.lineage])
        if not where.is_dir():
            gone = Failed(
                f"{what} are gone: {where} is no longer there.",
                untouched="Nothing was changed.",
                next="Put the directory back, or give the sink another path: it then starts empty.",
            )
            return SinkOutlook(SinkFate.ROLLED_BACK, str(where), gone)
        return SinkOutlook(SinkFate.ROLLED_BACK, f"{where} keeps {kept} batches, {behind} are moved aside")
    if was.path == where:
        clash = Misuse(
            f"Stage {context.stage!r} would write to {where}, which is where the job of the snapshot writes: the two "
            "would disturb each other.",
            untouched="Nothing was changed.",
            next="Say where the new job's files are to be: --base DIR moves every relative path there.",
        )
        return SinkOutlook(SinkFate.COPIED, str(where), clash)
    if there and not again:
        clash = Misuse(
            f"Stage {context.stage!r} would begin to write to {where}, but there are batches of another job already.",
            untouched="Nothing was changed.",
            next="Move them away, or choose another place: --base DIR moves every relative path there.",
        )
        return SinkOutlook(SinkFate.COPIED, str(where), clash)
    foreign = why_foreign(was.path, what, context) if os.path.lexists(was.path) else None
    if foreign is not None:
        return SinkOutlook(SinkFate.COPIED, f"{where} would start as a copy of {was.path}", foreign)
    if not was.path.is_dir():
        warning = f"{what} start empty, without the rows from before the snapshot: {was.path} is gone."
        return SinkOutlook(SinkFate.EMPTY, f"{was.path} is gone", None, warning)
    names = {place.name for place in was.places()}
    waiting = [part for part in context.named if directory_name(part.timeline, part.through) not in names]
    problem = None
    if waiting and not again:
        problem = Failed(
            f"{what} cannot begin as a copy of {was.path}: what the snapshot names is not visible there yet.",
            untouched="Nothing was changed.",
            next="It will be, a moment after the snapshot is complete: try again. `strobe transactions JOB` of "
            "the job that writes there says what it waits for.",
        )
    return SinkOutlook(SinkFate.COPIED, f"{where} starts with the {len(names)} batches of {was.path}", problem)


def take_back(was: Was, timeline: int) -> None:
    """Show what belongs to the snapshot and nothing else. Doing it again changes nothing."""
    left = was.path / HIDDEN / _LEFT
    left.mkdir(parents=True, exist_ok=True)
    for batch in reversed(shown(was.path)):  # the newest first: what a reader sees meanwhile has no gap
        if batch not in was.lineage and batch[0] != timeline:
            os.rename(was.path / directory_name(*batch), left / directory_name(*batch))
    for batch in shown(left):
        if batch in was.lineage:
            os.rename(left / directory_name(*batch), was.path / directory_name(*batch))
    fsync(left)
    fsync(was.path)
    was.lineage.write(was.path / HIDDEN / LINEAGE)


def copy(was: Was, where: Path) -> None:
    """Begin with what belongs to the snapshot; the original stays as it is."""
    scratch = where / HIDDEN / "copying"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    for source in was.places():
        target = where / source.name
        if not target.exists():
            (scratch / source.name).mkdir()
            for file in sorted(source.iterdir()):
                copy_regular(file, scratch / source.name / file.name)
                fsync(scratch / source.name / file.name)
            os.rename(scratch / source.name, target)
    fsync(where)
    was.lineage.write(where / HIDDEN / LINEAGE)
    shutil.rmtree(scratch, ignore_errors=True)

"""Where a stage's Spark checkpoint is, what it says of the stage's channels, and how a takeover gets its own copy.

A driver that has been given up may still be alive. Its Spark must never write into the directory that its successor's
Spark reads, so a takeover continues in a new generation of directories, made of hard links: the files are immutable.

The copy is made after channels and sinks have been fenced. What the old driver put there before is then final, and
Spark had logged the offsets of those batches first, so the copy knows every batch that channels and sinks know.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from strobe.hosts.shared.durable import fsync, write_durably
from strobe.hosts.spark.checkpoint import bad_files
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.home.job_home import JobHome
from strobe.model.errors import Failed
from strobe.model.ids import NodeId
from strobe.store.layout import JobLayout
from strobe.store.manifest import NOTHING
from strobe.store.small_files import read_as

__all__ = [
    "adopt_checkpoints", "bad_files_on_disk", "channel_positions", "has_start", "link_checkpoint", "note_starts",
    "relocate_state", "rewritten_generation", "stage_checkpoint", "start_positions", "sync_above", "sync_tree",
]  # fmt: skip

_SCHEMA_PATH = re.compile(r'"file:[^"]*?/(state/\d+/_stateSchema/[^"]+)"')


def stage_checkpoint(home: JobHome, uid: NodeId, generation: int | None = None) -> Path:
    number = home.record.generation if generation is None else generation
    return home.path(home.layout.stage_checkpoint(uid, home.record.timeline, number))


def rewritten_generation(home: JobHome) -> int:
    """Where checkpoints are rewritten, until the job record names it. Not the next number: a start that finds a dead
    driver takes that one, and would use what the dead driver had half rewritten."""
    return home.record.generation + 2


def bad_files_on_disk(home: Path, job: str) -> dict[NodeId, bad_files.BadFiles]:
    """The input files that each stage has set aside, read from disk without the running job. Stages that have set none
    aside are left out."""
    holder = JobHome(home, job)
    holder.peek()
    found = {}
    for uid in holder.record.stages:
        place = _newest_checkpoint(holder, uid)
        logged = None if place is None else spark_checkpoint.last_logged(place)
        if place is not None and logged is not None and (bad := bad_files.read(place, logged)).count:
            found[uid] = bad
    return found


def _newest_checkpoint(home: JobHome, uid: NodeId) -> Path | None:
    """Of the generations up to the job's own, the newest that is there. They are looked for on the disk, since the
    number may be anything in a record that was damaged."""
    line = stage_checkpoint(home, uid, 0).parent
    names = [path.name for path in line.parent.iterdir()] if line.parent.is_dir() else []
    numbers = [int(n) for name in names if (n := name.removeprefix(f"{line.name}.")).isdecimal() and len(n) < 20]
    for number in sorted({0, *(n for n in numbers if n <= home.record.generation)}, reverse=True):
        if (place := stage_checkpoint(home, uid, number)).is_dir():
            return place
    return None


def channel_positions(checkpoint: Path, batch: int, inputs: Iterable[NodeId]) -> dict[NodeId, int]:
    """Where each input stood after `batch`, from Spark's own offset log. 0 is before the first row."""
    starts = start_positions(checkpoint) if batch == NOTHING else {}
    positions = {uid: starts.get(uid, 0) for uid in inputs}
    if batch != NOTHING and positions:
        for offset in spark_checkpoint.read_offsets(checkpoint, batch).sources:
            if isinstance(offset, dict) and offset.get("channel") in positions:
                positions[NodeId(offset["channel"])] = int(offset["version"])
    return positions


def _starts(checkpoint: Path) -> Path:
    """The file with a stage's start positions."""
    return checkpoint.parent.parent / JobLayout.starts_beside(checkpoint.parent.name)


def start_positions(checkpoint: Path) -> dict[NodeId, int]:
    """Where the stage begins on each channel that was there before it did anything; 0 where this says nothing."""
    try:
        return read_as(_starts(checkpoint), dict[NodeId, int])
    except FileNotFoundError:
        return {}


def has_start(checkpoint: Path) -> bool:
    """Whether it is settled where the stage begins, even if it reads no channel."""
    return _starts(checkpoint).exists()


def note_starts(checkpoint: Path, starts: Mapping[NodeId, int]) -> None:
    """Say where the stage begins, durably, before it has a batch."""
    path = _starts(checkpoint)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, json.dumps(dict(starts)))


def adopt_checkpoints(home: JobHome, uids: tuple[NodeId, ...]) -> None:
    """Give each stage its directory of this generation: a copy of the newest that it has of an earlier one.

    At every start, not only at a takeover: the one that took over may have died before it was done.
    """
    for uid in uids:
        new = stage_checkpoint(home, uid)
        old = next(
            (p for g in reversed(range(home.record.generation)) if (p := stage_checkpoint(home, uid, g)).is_dir()), None
        )
        if old is None or new.exists():
            continue
        unfinished = new.with_name(f".{new.name}")
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            link_checkpoint(old, unfinished)
            relocate_state(unfinished, new)
            _sync_names(unfinished)
            unfinished.rename(new)
            sync_above(new, home.home)
            _forget_older(home, uid)  # only now: until it is linked, the old directory may be the only copy
        except OSError as error:
            raise Failed(
                f"The checkpoint of stage {uid!r} could not be taken over: {error.strerror or error}.",
                untouched="The old one is as it was.",
                next="Check the disk that holds it, and run again.",
            ) from error


def _forget_older(home: JobHome, uid: NodeId) -> None:
    """Delete older generations. The files are hard links: what Spark deletes in the new directory would otherwise stay
    on disk."""
    for generation in range(home.record.generation):
        home.discard(stage_checkpoint(home, uid, generation).parent)


def relocate_state(checkpoint: Path, place: Path | None = None) -> None:
    """Spark notes the schemas of a transformWithState by their full path. Make that the one below `place`, which is
    where `checkpoint` is or will be."""
    where = str((checkpoint if place is None else place).absolute())
    root = "file:" + json.dumps(where, ensure_ascii=False)[1:-1]  # as Hadoop writes it: not encoded as in a URL
    for path in checkpoint.glob("state/*/_metadata/v2/*"):
        text = path.read_text(encoding="utf-8")
        moved = _SCHEMA_PATH.sub(lambda match: f'"{root}/{match[1]}"', text)
        if moved != text:
            write_durably(path, moved)


def sync_tree(root: Path, upto: Path) -> None:
    """Make every file below `root`, and the names that lead to them from `upto`, durable."""
    for directory, _, names in os.walk(root):
        for name in names:
            fsync(Path(directory, name))
        fsync(Path(directory))
    sync_above(root, upto)


def sync_above(path: Path, upto: Path) -> None:
    """Make the names that lead to `path` from the directory `upto` durable: their creator may not have done so."""
    for above in path.parents:
        fsync(above)
        if above == upto:
            return


def _sync_names(root: Path) -> None:
    for directory, _, _ in os.walk(root):
        fsync(Path(directory))


def link_checkpoint(old: Path, new: Path) -> None:
    """Link the files. The batches' commits come first: Spark writes them last, so whatever a linked commit needs exists
    already."""
    new.mkdir(parents=True)
    parts = sorted((e.name for e in os.scandir(old)), key=lambda name: (name != "commits", name))
    for part in parts:
        if (old / part).is_dir():
            for directory, _, names in os.walk(old / part):
                target = new / Path(directory).relative_to(old)
                target.mkdir(parents=True, exist_ok=True)
                for name in names:
                    _link(Path(directory, name), target / name)
        else:
            _link(old / part, new / part)


def _link(old: Path, new: Path) -> None:
    if not old.name.startswith("."):
        with contextlib.suppress(FileNotFoundError):  # the old driver's Spark lets go of what is long past
            os.link(old, new)

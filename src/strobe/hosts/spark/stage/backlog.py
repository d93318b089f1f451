"""How much a stage's sources still have for it, where they can tell.

*Kafka* (and any source with offsets by topic and partition) says with each batch how far its topics reach: what lies
between that and the batch's end waits. So the figure is as of the stage's last batch.

*Files*: those in the directory that Spark's log of the source does not have. They are listed here, as Spark lists them:
the directory itself and its partitions (`day=…`), without names that begin with `_` or `.`. A path that cannot be
listed in this way (another file system, alternatives in braces) is not counted at all, rather than wrongly.

Listing a large directory takes a while: at most a twentieth of the time goes into it.
"""

from __future__ import annotations

import fnmatch
import glob
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from strobe.hosts.shared.clock import SYSTEM
from strobe.hosts.spark.checkpoint.source_files import newly_read
from strobe.hosts.spark.snapshot.metrics import Backlog

__all__ = ["Directory", "FileBacklog", "directories_of", "offsets_behind"]

_PAUSE: Final = 2.0  # seconds between two listings, at least
_SHARE: Final = 20


# ── offsets ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def offsets_behind(sources: Sequence[Mapping[str, Any]]) -> int | None:
    """Rows that wait in sources which count by topic and partition; None if none of them does."""
    known = [behind for source in sources if (behind := _behind(source)) is not None]
    return sum(known) if known else None


def _behind(source: Mapping[str, Any]) -> int | None:
    latest, end = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
    if latest is None or end is None:
        return None
    return sum(max(0, offset - end.get(place, 0)) for place, offset in latest.items())


def _offsets(said: Any) -> dict[tuple[str, str], int] | None:
    """`{"topic": {"0": 12}}`, flat; None if it is something else."""
    try:
        topics = json.loads(said) if isinstance(said, str) else said
        flat = {(topic, partition): offset for topic, of in topics.items() for partition, offset in of.items()}
    except (AttributeError, ValueError):
        return None
    return flat if flat and all(type(offset) is int for offset in flat.values()) else None


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory that a stage reads, or a pattern of such. `everything` below it, or its partitions only."""

    path: str
    everything: bool = False
    name_filter: str | None = None

    def files(self) -> Iterator[os.DirEntry[str]]:
        for root in glob.iglob(self.path) if glob.has_magic(self.path) else (self.path,):
            if os.path.isdir(root):
                yield from self._below(root)
            else:
                os.stat(root)  # an error if there is no such file either
                with os.scandir(os.path.dirname(root)) as entries:
                    yield from (e for e in entries if e.path == root)

    def _below(self, root: str) -> Iterator[os.DirEntry[str]]:
        with os.scandir(root) as entries:
            for entry in entries:
                hidden = entry.name.startswith(("_", ".")) and "=" not in entry.name
                if hidden:
                    continue
                if entry.is_dir():
                    if self.everything or "=" in entry.name:
                        yield from self._below(entry.path)
                elif self.name_filter is None or fnmatch.fnmatchcase(entry.name, self.name_filter):
                    yield entry


def directories_of(plan: Any) -> list[Directory] | None:
    """What the file sources of an analysed plan read; None if there is none, or one that cannot be listed here."""
    leaves = plan.collectLeaves()
    found = []
    for leaf in (leaves.apply(i) for i in range(leaves.size())):
        if leaf.getClass().getSimpleName() != "StreamingRelation" or not leaf.sourceName().startswith("FileSource"):
            continue
        source = leaf.dataSource()
        options = {name.lower(): value for name, value in _items(source.options())}
        path = _local(options.get("path", ""))
        if path is None or set("{}\\") & set(path + options.get("pathglobfilter", "")):
            return None
        everything = options.get("recursivefilelookup", "false").lower() == "true"
        found.append(Directory(path, everything, options.get("pathglobfilter")))
    return found or None


def _items(scala_map: Any) -> list[tuple[str, str]]:
    pairs = scala_map.toSeq()
    return [(str(pairs.apply(i)._1()), str(pairs.apply(i)._2())) for i in range(pairs.size())]


def _local(path: str) -> str | None:
    parts = urlsplit(path)
    if parts.scheme not in ("", "file") or not path:
        return None
    return os.path.abspath(unquote(parts.path) if parts.scheme else path)


class FileBacklog:
    """The files that one stage has yet to read."""

    def __init__(self, directories: Sequence[Directory], checkpoint: Path) -> None:
        self._directories = directories
        self._checkpoint = checkpoint
        self._read: set[str] = set()  # of these, those that still exist
        self._newest: dict[str, int] = {}  # the last entry of each source's log that was looked at
        self._not_before = 0.0
        self.known: Backlog | None = None

    def refresh(self, now: float, *, last: bool = False) -> None:
        """Count again, unless that was done a moment ago and there is a next time."""
        if now < self._not_before and not last:
            return
        began = SYSTEM.monotonic()
        try:
            self.known = self.count()
        except OSError:
            self.known = None  # it is gone, or may not be read: Spark says so if it matters
        self._not_before = now + max(_PAUSE, _SHARE * (SYSTEM.monotonic() - began))

    def count(self) -> Backlog:
        there = {entry.path: entry for directory in self._directories for entry in directory.files()}
        self._read.update(newly_read(self._checkpoint, self._newest))  # after the listing: a file between is not in it
        self._read &= there.keys()
        waiting = [entry for path, entry in there.items() if path not in self._read]
        return Backlog(files=len(waiting), bytes=sum(entry.stat().st_size for entry in waiting))

"""The log of the files that a query's file source has read, `sources/I/K`, and how it is rewritten.

One line for each file, with the entry K to which it belongs; a file that is in no line is new. A batch reads the lines
of its entries. So a file whose line belongs to no entry is read by no batch, and is never new: that is how one is left
out. The log is part of the checkpoint, and with it of every snapshot.

Spark takes the last line of the log for one of its newest entry, so lines of no entry stand first. And an entry must
have a file: one that has none left gets the name of a file that does not exist, which Spark passes over.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from strobe.hosts.shared.durable import write_durably
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.model.errors import Damaged

__all__ = ["files_of_batch", "leave_out", "read_again_from"]

_NOTHING: Final = ".strobe-nothing-"
_NO_ENTRY: Final = -1


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    path: str
    entry: int


def files_of_batch(checkpoint: Path, batch: int) -> tuple[str, ...]:
    """The files that the batch reads from all file sources, by the names that Spark has for them."""
    found: dict[str, None] = {}
    for log in _logs(checkpoint, batch):
        _, lines = _read(log)
        found |= {line.path: None for line in lines if line.entry == _number(log) and _NOTHING not in line.path}
    return tuple(found)


def leave_out(checkpoint: Path, batch: int, paths: Collection[str]) -> None:
    """Take these files out of the batch, which is the last that was planned and has not run. Doing it again changes
    nothing."""
    for log in _logs(checkpoint, batch):
        version, lines = _read(log)
        out = [line for line in lines if line.path in paths and line.entry == _number(log)]
        if out:
            first = [_text({**json.loads(line.text), "batchId": _NO_ENTRY}) for line in out]
            kept = [line.text for line in lines if line not in out]
            _rewrite(log, version, kept, out[0].path.rpartition("/")[0], first=first)


def read_again_from(checkpoint: Path, time: datetime) -> None:
    """Remove files that are as young as `time`, or younger, from the logs of a query that has run batch 0 only: they
    are new to it again."""
    for log in checkpoint.glob("sources/*/0"):
        version, lines = _read(log)
        older = [line.text for line in lines if json.loads(line.text)["timestamp"] < time.timestamp() * 1000]
        if lines:
            _rewrite(log, version, older, lines[0].path.rpartition("/")[0])


def _rewrite(log: Path, version: str, lines: Sequence[str], directory: str, *, first: Sequence[str] = ()) -> None:
    """Replace the lines of a log; its files are in `directory` or below it. `first` are lines of no entry."""
    number = _number(log)
    if not any(_parsed(line).entry == number for line in lines):
        nothing = {"path": f"{directory}/{_NOTHING}{number}", "timestamp": 0, "batchId": number}
        lines = [*lines, _text(nothing)]
    log.with_name(f".{log.name}.crc").unlink(missing_ok=True)  # Spark's, of the old content
    write_durably(log, "\n".join([version, *first, *lines]))


def _logs(checkpoint: Path, batch: int) -> Iterator[Path]:
    """The logs that the batch adds, of all file sources."""
    if not (checkpoint / "sources").is_dir():
        return
    now = spark_checkpoint.read_offsets(checkpoint, batch).sources
    before = spark_checkpoint.read_offsets(checkpoint, batch - 1).sources if batch > 0 else ()
    for source, offset in enumerate(now):
        begin = _log_offset(before[source]) if source < len(before) else -1
        for number in range(begin + 1, _log_offset(offset) + 1):
            for name in (f"{number}", f"{number}.compact"):
                log = checkpoint / "sources" / str(source) / name
                if log.is_file():
                    yield log


def _log_offset(offset: object) -> int:
    return int(offset["logOffset"]) if isinstance(offset, dict) and "logOffset" in offset else -1


def _number(log: Path) -> int:
    return int(log.name.removesuffix(".compact"))


def _read(log: Path) -> tuple[str, list[_Line]]:
    """Its version, and its lines."""
    try:
        version, *lines = log.read_text(encoding="utf-8").split("\n")
        return version, [_parsed(line) for line in lines if line]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(
            f"Spark's checkpoint file {log} cannot be read: {error}.",
            untouched="Nothing was changed.",
            next="Put back a copy of it, or restore the job from a snapshot.",
        ) from error


def _parsed(text: str) -> _Line:
    value = json.loads(text)
    return _Line(text, str(value["path"]), int(value["batchId"]))


def _text(entry: dict[str, object]) -> str:
    return json.dumps(entry, separators=(",", ":"), ensure_ascii=False)

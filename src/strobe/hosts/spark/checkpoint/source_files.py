"""The log of the files that a query's file source has read, `sources/I/K`, and how it is rewritten.

One line for each file, with the entry K to which it belongs; a file that is in no line is new. A batch reads the lines
of its entries. So a file whose line belongs to no entry is read by no batch, and is never new: that is how one is left
out. The log is part of the checkpoint, and with it of every snapshot.

Spark takes the last line of the log for one of its newest entry, so lines of no entry stand first. And an entry must
have a file: one that has none left gets the name of a file that does not exist, which Spark passes over.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from strobe.hosts.shared.durable import write_durably
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.home.moved import LOCAL, is_below
from strobe.model.errors import Damaged

__all__ = ["files_of_batch", "leave_out", "newly_read", "read_again_from", "rewrite_source_logs", "source_logs"]

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


def source_logs(checkpoint: Path) -> list[str]:
    """The logs of all file sources, as text."""
    return [path.read_text(encoding="utf-8") for path in checkpoint.glob("sources/*/*") if _is_log(path.name)]


def _is_log(name: str) -> bool:
    return name.removesuffix(".compact").isdigit()


def rewrite_source_logs(checkpoint: Path, moved: Mapping[str, str]) -> None:
    """Have the logs of the file sources in a Spark checkpoint name the files where they are now. Doing it again changes
    nothing. Files are replaced, never changed: others may have links to the old ones."""
    for path in checkpoint.glob("sources/*/*") if moved else ():
        if not _is_log(path.name):
            continue
        try:
            version, *lines = path.read_text(encoding="utf-8").split("\n")
            fresh = "\n".join([version, *(_rewritten(line, moved) for line in lines)])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise _damaged(path, error) from error
        if fresh != "\n".join([version, *lines]):
            write_durably(path, fresh)


def _rewritten(line: str, moved: Mapping[str, str]) -> str:
    if not line.startswith("{"):
        return line
    entry = json.loads(line)
    path = entry.get("path")
    if not isinstance(path, str) or not path.startswith(LOCAL):
        return line
    name = path.removeprefix(LOCAL)
    if any(is_below(name, new) for new in moved.values()):
        return line  # by an earlier attempt
    for old, new in sorted(moved.items(), key=lambda pair: -len(pair[0])):
        if is_below(name, old):
            entry["path"] = f"{LOCAL}{new.rstrip('/')}/{name[len(old.rstrip('/')) + 1 :]}"
            return _text(entry)
    return line


def newly_read(checkpoint: Path, seen: dict[str, int]) -> Iterator[str]:
    """The files that the logs have named since the last call, by their local paths. `seen` has the last entry of each
    source's log that was looked at, and is brought up to date."""
    for folder in checkpoint.glob("sources/*"):
        logs = {_number(path): path for path in folder.iterdir() if _is_log(path.name)}
        compact = max((number for number, path in logs.items() if path.suffix), default=-1)
        after = seen.get(folder.name, -1)
        for number in sorted(n for n in logs if n > after and n >= compact):
            yield from _local_paths(logs[number])
            seen[folder.name] = number


def _local_paths(log: Path) -> Iterator[str]:
    for line in log.read_text(encoding="utf-8").splitlines():
        if line.startswith("{"):
            try:
                path = json.loads(line).get("path", "")
            except ValueError:
                continue
            yield unquote(urlsplit(path).path)


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
        raise _damaged(log, error) from error


def _damaged(log: Path, error: Exception) -> Damaged:
    return Damaged(
        f"Spark's checkpoint file {log} cannot be read: {error}.",
        untouched="Nothing was changed.",
        next="Put back a copy of it, or restore the job from a snapshot.",
    )


def _parsed(text: str) -> _Line:
    value = json.loads(text)
    return _Line(text, str(value["path"]), int(value["batchId"]))


def _text(entry: dict[str, object]) -> str:
    return json.dumps(entry, separators=(",", ":"), ensure_ascii=False)

"""Laying out a stage's Spark checkpoint from a snapshot, and checking the names in it before Spark opens it.

Spark trusts a checkpoint directory. It copies the files that the metadata of a RocksDB state names to the names given
there, and reads schemas of a transformWithState from wherever their paths lead. So what comes from a snapshot is
checked before Spark opens it, whether to go on from it or to export it:

- a RocksDB snapshot (`N.zip`) names its files by single plain names, and holds no directories;
- paths of schemas lead into the checkpoint itself, and are changed to where it is now;
- the class that keeps the state is one of Spark's own.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from strobe.hosts.spark.checkpoint.stage_files import relocate_state
from strobe.model.errors import Damaged, Misuse
from strobe.model.ids import NodeId
from strobe.model.paths import check_file_name, check_relative
from strobe.model.strict_json import parse
from strobe.store.locate import Located
from strobe.store.manifest import Manifest

__all__ = ["check_laid_out", "lay_out_stage"]

_LARGEST_METADATA: Final = 64 << 20
_SCHEMA: Final = re.compile(r"file:/.*?/(state/\d+/_stateSchema/.+)")
_ADDRESS: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?/")
_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_SPARK: Final = re.compile(r"org\.apache\.spark\.sql\.execution\.streaming\.[\w.]+")
_UNREADABLE: Final = (
    ArithmeticError, AttributeError, LookupError, NotImplementedError, OSError, RecursionError, RuntimeError, TypeError,
    ValueError, zipfile.BadZipFile, Misuse,
)  # fmt: skip


def lay_out_stage(found: Located, manifest: Manifest, uid: NodeId, place: Path) -> None:
    """Lay out the stage's files. Every byte is checked, and every name in them that Spark would follow."""
    found.store.lay_out(manifest, f"nodes/{uid}/files/", place)
    check_laid_out(place, uid)
    relocate_state(place)


def check_laid_out(checkpoint: Path, uid: NodeId) -> None:
    """Raise Damaged if Spark would read or write elsewhere because of what is in there."""
    for path in _files(checkpoint):
        relative = path.relative_to(checkpoint)
        try:
            if path.suffix == ".zip" and relative.parts[0] == "state":
                _check_archive(path)
            elif relative.parts[0] == "state" and (path.match("_metadata/metadata") or path.match("_metadata/v2/*")):
                _check_metadata(path)
            elif relative.parts[0] == "offsets" and path.name.isdecimal():
                _check_offsets(path)
        except _UNREADABLE as error:
            said = error.what.rstrip(".") if isinstance(error, Misuse) else f"{error!s:.300}"
            raise Damaged(
                f"{relative} of stage {uid} is not what Spark wrote: {said}.",
                untouched="Nothing was changed, and Spark has not read it.",
                next="Find out where this snapshot comes from; restore another one.",
            ) from error


def _files(root: Path) -> Iterator[Path]:
    for directory, _, names in os.walk(root):
        yield from (Path(directory, name) for name in sorted(names))


def _check_archive(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            check_file_name(entry.filename, "file")
        if archive.getinfo("metadata").file_size > _LARGEST_METADATA:
            raise ValueError("its metadata are too large")
        head, _, body = archive.read("metadata").partition(b"\n")
    if not re.fullmatch(rb"v\d+", head):
        raise ValueError("its metadata have no version")
    value = parse(body)
    for kind in ("sstFiles", "logFiles"):
        for file in value.get(kind) or ():
            for name, text in file.items():
                if name.endswith(("FileName", "Filename")):
                    check_file_name(text, name)


def _check_metadata(path: Path) -> None:
    """Check that whatever looks like a path in an operator's metadata is a schema's path in this checkpoint."""
    if path.stat().st_size > _LARGEST_METADATA:
        raise ValueError("it is too large")
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith(("{", "[")):
            continue
        for text in _texts(parse(line.encode())):
            if _ADDRESS.match(text):
                match = _SCHEMA.fullmatch(text)
                if match is None:
                    raise ValueError(f"{text!r:.120} leads elsewhere")
                check_relative(match[1])


def _texts(value: Any) -> Iterator[str]:
    """All strings in a value. Spark nests JSON in strings; such a string is parsed, too."""
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, dict):
            todo += (*each.keys(), *each.values())
        elif isinstance(each, list):
            todo += each
        elif isinstance(each, str):
            yield each
            if each.startswith(("{", "[")):
                try:
                    todo.append(json.loads(each))
                except (ValueError, RecursionError):
                    continue


def _check_offsets(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    value = parse(lines[1].encode()) if len(lines) > 1 else {}
    provider = value.get("conf", {}).get(_PROVIDER)
    if provider is not None and not _SPARK.fullmatch(provider):
        raise ValueError(f"it has Spark load the class {provider!r:.120}")

"""Laying out a stage's Spark checkpoint from a snapshot, and checking the names in it before Spark opens it.

Spark trusts a checkpoint directory. It copies the files that the metadata of a RocksDB state names to the names given
there, and reads schemas of a transformWithState from wherever their paths lead. So what comes from a snapshot is
checked before Spark opens it, whether to go on from it or to export it:

- a RocksDB snapshot (`N.zip`) names its files by single plain names, and holds no directories, nor entries that it
  does not list;
- paths of schemas lead into the checkpoint itself, and are changed to where it is now; names of stores are plain;
- the classes that keep, compress and describe the state are Spark's own: Spark makes an object of any class that a
  schema names as that of a type.
"""

from __future__ import annotations

import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from strobe.hosts.spark.checkpoint.stage_files import relocate_state
from strobe.look.state_schema import schema_texts
from strobe.look.types import Unsupported
from strobe.model.errors import Damaged, Misuse
from strobe.model.ids import NodeId
from strobe.model.paths import check_file_name, check_relative
from strobe.model.strict_json import parse
from strobe.store.locate import Located
from strobe.store.manifest import Manifest

__all__ = ["check_laid_out", "lay_out_stage"]

_LARGEST_METADATA: Final = 64 << 20
_LARGEST_ENTRY: Final = 1 << 30
_PIECE: Final = 1 << 16
_ENTRY: Final = struct.Struct("<4sHHHHHIIIHH")  # before each entry of an archive
_ENCRYPTED, _SIZE_AFTER, _UTF8 = 0x1, 0x8, 0x800
_USUAL_ENTRIES: Final = {(zipfile.ZIP_STORED, 0), (zipfile.ZIP_DEFLATED, 0), (zipfile.ZIP_DEFLATED, _SIZE_AFTER)}
_SCHEMA: Final = re.compile(r"file:/.*?/(state/\d+/_stateSchema/.+)")
_ADDRESS: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?/")
_CLASSES: Final = {
    "spark.sql.streaming.stateStore.providerClass": re.compile(
        r"org\.apache\.spark\.sql\.execution\.streaming\.[\w.]+"
    ),
    "spark.sql.streaming.stateStore.compression.codec": re.compile(
        r"(?i:lz4|lzf|snappy|zstd)|org\.apache\.spark\.io\.\w+"
    ),
}
_TYPE: Final = re.compile(r"org\.apache\.spark\.(?:ml|mllib)\.linalg\.(?:Vector|Matrix)UDT")
_UNREADABLE: Final = (
    ArithmeticError, AttributeError, LookupError, NotImplementedError, OSError, RecursionError, RuntimeError, TypeError,
    Unsupported, ValueError, struct.error, zipfile.BadZipFile, zlib.error, Misuse,
)  # fmt: skip


def lay_out_stage(found: Located, manifest: Manifest, uid: NodeId, place: Path) -> None:
    """Lay out the stage's files. Every byte is checked, and every name in them that Spark would follow."""
    found.store.lay_out(manifest, f"nodes/{uid}/files/", place)
    check_laid_out(place, uid)
    relocate_state(place)
    check_laid_out(place, uid, relocated=True)


def check_laid_out(checkpoint: Path, uid: NodeId, *, relocated: bool = False) -> None:
    """Raise Damaged if Spark would read or write elsewhere because of what is in there. `relocated`: only whether every
    path of a schema has become one of this place."""
    for path in _files(checkpoint):
        relative = path.relative_to(checkpoint)
        try:
            if relocated:
                if _is_metadata(relative):
                    _check_metadata(path, f"file:{checkpoint.absolute()}/")
            elif path.suffix == ".zip" and relative.parts[0] == "state":
                _check_archive(path)
            elif _is_metadata(relative):
                _check_metadata(path)
            elif relative.parts[0] == "state" and (path.match("_metadata/schema") or "_stateSchema" in relative.parts):
                _check_schema(path)
            elif relative.parts[0] == "offsets" and path.name.isdecimal():
                _check_offsets(path)
        except _UNREADABLE as error:
            said = error.what.rstrip(".") if isinstance(error, Misuse) else f"{error!s:.300}"
            raise Damaged(
                f"{relative} of stage {uid} is not what Spark wrote: {said}.",
                untouched="Nothing was changed, and Spark has not read it.",
                next="Find out where this snapshot comes from; restore another one.",
            ) from error


def _is_metadata(path: Path) -> bool:
    return path.parts[0] == "state" and (path.match("_metadata/metadata") or path.match("_metadata/v2/*"))


def _files(root: Path) -> Iterator[Path]:
    for directory, _, names in os.walk(root):
        yield from (Path(directory, name) for name in sorted(names))


def _check_archive(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        _check_order(path, archive)
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


def _check_order(path: Path, archive: zipfile.ZipFile) -> None:
    """Spark reads an archive from its beginning, one entry after the other; what is checked here goes by the list at
    its end. An archive may hold entries that are not in the list. So both must find the same, and nothing between."""
    found, at = [], 0
    with path.open("rb") as file:
        while at < archive.start_dir:
            file.seek(at)
            mark, _, flags, method, _, _, _, packed, _, name, more = _ENTRY.unpack(file.read(_ENTRY.size))
            if mark != b"PK\3\4" or flags & _ENCRYPTED or (method, flags & _SIZE_AFTER) not in _USUAL_ENTRIES:
                raise ValueError("it has an entry that Spark does not write")
            found.append(file.read(name).decode("utf-8" if flags & _UTF8 else "cp437"))
            begin = at + _ENTRY.size + name + more
            at = begin + packed if method == zipfile.ZIP_STORED else _end_of_deflated(file, begin)
            if flags & _SIZE_AFTER:
                file.seek(at)
                if file.read(4) != b"PK\7\x08":
                    raise ValueError("an entry of it does not end")
                at += 16
            elif at != begin + packed:
                raise ValueError("an entry of it has another size than it says")
    listed = [entry.orig_filename for entry in sorted(archive.infolist(), key=lambda entry: entry.header_offset)]
    if at != archive.start_dir or found != listed or len(set(found)) < len(found):
        raise ValueError("its entries are not those that it lists")


def _end_of_deflated(file: BinaryIO, begin: int) -> int:
    """Where the compressed bytes from `begin` on say that they end."""
    file.seek(begin)
    unpacking, size = zlib.decompressobj(-zlib.MAX_WBITS), 0
    while not unpacking.eof:
        given = unpacking.unconsumed_tail or file.read(_PIECE)
        if not given:
            raise ValueError("it is cut off")
        size += len(unpacking.decompress(given, _PIECE))
        if size > _LARGEST_ENTRY:
            raise ValueError("an entry of it is too large")
    return file.tell() - len(unpacking.unused_data)


def _check_metadata(path: Path, root: str = "") -> None:
    """Check that whatever looks like a path in an operator's metadata is a schema's path in this checkpoint, below
    `root`, and that stores have plain names. Spark reads a line and then one value, wherever lines end."""
    if path.stat().st_size > _LARGEST_METADATA:
        raise ValueError("it is too large")
    _, _, body = path.read_bytes().replace(b"\r", b"\n").partition(b"\n")
    for name, text in _texts(parse(body)):
        if name == "storeName":
            check_file_name(text, name)
        elif name == "stateSchemaFilePaths" or _ADDRESS.match(text):
            match = _SCHEMA.fullmatch(text)
            if match is None or not text.startswith(root):
                raise ValueError(f"{text!r:.120} leads elsewhere")
            check_relative(match[1])


def _texts(value: Any) -> Iterator[tuple[str, str]]:
    """All strings in a value, each with the field that it stands in. Spark nests JSON in strings; such a string is
    parsed, too."""
    todo = [("", value)]
    while todo:
        name, each = todo.pop()
        if isinstance(each, dict):
            todo += (("", key) for key in each)
            todo += each.items()
        elif isinstance(each, list):
            todo += ((name, item) for item in each)
        elif isinstance(each, str):
            yield name, each
            if each.lstrip().startswith(("{", "[")):
                try:
                    todo.append((name, json.loads(each)))
                except (ValueError, RecursionError):
                    continue


def _check_schema(path: Path) -> None:
    """Check that no type in the schema of a state has Spark load a class."""
    if path.stat().st_size > _LARGEST_METADATA:
        raise ValueError("it is too large")
    for text in schema_texts(path.read_bytes()):
        todo = [parse(text.encode())]
        while todo:
            each = todo.pop()
            if isinstance(each, dict):
                named = each.get("class")
                if each.get("type") == "udt" and named is not None and not _TYPE.fullmatch(named):
                    raise ValueError(f"it has Spark load the class {named!r:.120}")
                todo += each.values()
            elif isinstance(each, list):
                todo += each


def _check_offsets(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").split("\n")
    value = parse(lines[1].encode()) if len(lines) > 1 else {}
    for name, own in _CLASSES.items():
        named = value.get("conf", {}).get(name)
        if named is not None and not own.fullmatch(named):
            raise ValueError(f"it has Spark load the class {named!r:.120}")

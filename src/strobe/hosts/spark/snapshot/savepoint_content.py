"""The rows that a savepoint holds of a channel, decoded: which commits, in which files, of which columns.

The manifest keeps this beside the blobs (`commits` and `schema` of a channel). It is data from outside: a file is one
of the channel's blobs by its name there and nothing else, versions rise and lie before the barrier. A column never has
a user-defined type, which would name a class to import.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from strobe.model.cut import Json
from strobe.model.errors import Damaged
from strobe.model.ids import ChannelId
from strobe.model.paths import RelativePath
from strobe.model.strict_json import NotJson, parse
from strobe.store.manifest import ChannelRecord

__all__ = ["ContentCommit", "content_of", "schema_from", "schema_of"]

_UNREADABLE = (AssertionError, AttributeError, LookupError, PySparkException, RecursionError, TypeError, ValueError)


@dataclass(frozen=True)
class ContentCommit:
    """One commit of a channel's content: its old version, and its files as (source, rows, size). The source is a path
    in the snapshot's content, or a file of the original's channel."""

    version: int
    files: tuple[tuple[RelativePath, int, int], ...]

    @property
    def rows(self) -> int:
        return sum(rows for _, rows, _ in self.files)


def content_of(name: ChannelId, record: ChannelRecord, where: str) -> tuple[ContentCommit, ...]:
    """The commits that the savepoint at `where` holds of this channel, in order."""
    try:
        commits = tuple(_commit(value, record) for value in _list(record.extra.get("commits", [])))
        versions = [commit.version for commit in commits]
        if versions != sorted(set(versions)):
            raise ValueError("its commits are not in order")
        paths = [path for commit in commits for path, _, _ in commit.files]
        if len(paths) != len(set(paths)):
            raise ValueError("a file belongs to two commits")
        return commits
    except _UNREADABLE as error:
        raise _damaged(name, where, error) from error


def schema_of(name: ChannelId, record: ChannelRecord, where: str) -> StructType | None:
    """The columns of these rows, if the savepoint says which."""
    schema = record.extra.get("schema")
    try:
        return None if schema is None else schema_from(schema)
    except _UNREADABLE as error:
        raise _damaged(name, where, error) from error


def schema_from(value: Json) -> StructType:
    """A schema as Spark writes it, as text or as its value. ValueError if it names a class."""
    if isinstance(value, str):
        value = parse(value.encode())
    if not isinstance(value, dict) or value.get("type") != "struct":
        raise TypeError("its schema is not a struct")
    todo: list[Any] = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, dict):
            if each.get("type") == "udt" or "pyClass" in each or "class" in each:
                raise ValueError("its schema names a class, and none is loaded because a snapshot says so")
            todo += each.values()
        elif isinstance(each, list):
            todo += each
    return StructType.fromJson(value)


def _commit(value: Any, record: ChannelRecord) -> ContentCommit:
    version = _whole(value["version"], "version")
    if record.barrier is None or version > record.barrier:
        raise ValueError(f"commit {version} is behind the barrier")
    return ContentCommit(version, tuple(_file(file, record) for file in _list(value["files"])))


def _file(value: Any, record: ChannelRecord) -> tuple[RelativePath, int, int]:
    path, rows, size = value["path"], _whole(value["rows"], "rows"), _whole(value["size"], "size")
    if not isinstance(path, str) or path not in record.content:
        raise ValueError(f"{path!r:.120} is not a file of it")
    if record.content[path].size != size:
        raise ValueError(f"{path!r:.120} has {record.content[path].size} bytes, not {size}")
    return RelativePath(path), rows, size  # a key of `content`: the manifest has checked those


def _whole(value: object, what: str) -> int:
    if value.__class__ is not int or not 0 <= int(str(value)) < 1 << 63:
        raise ValueError(f"{what} {value!r:.80} is not a possible number")
    return int(str(value))


def _list(value: Json) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r:.80} is not a list")
    return value


def _damaged(name: ChannelId, where: str, error: Exception) -> Damaged:
    said = str(error) if isinstance(error, NotJson | ValueError) else f"{type(error).__name__}: {error!s:.200}"
    return Damaged(
        f"Savepoint {where} does not say what channel {name} holds: {said}.",
        untouched="Nothing was changed.",
        next=f"`strobe verify {where}`; restore another snapshot.",
    )

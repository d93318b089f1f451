"""The small files of a home: what a driver says of itself, the job record, ledgers, notes.

A home is trusted, but files in it may be torn, or be something else by now: a pipe that nobody writes to, a sparse file
of terabytes, JSON that is nested until the stack ends. A caller gets all of it, or an OSError or ValueError at once.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from strobe.model.strict_json import NotJson, check_value, parse

__all__ = ["as_kind", "open_regular", "read_as", "read_object", "read_small"]

T = TypeVar("T")

_LARGEST: Final = 64 << 20  # bytes; a job record has a description of every stage


def open_regular(path: str | Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """A descriptor, as `os.open` gives it, of a regular file and of nothing else. It also is an `opener` for `open`."""
    handle = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, mode)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return handle


def read_small(path: Path, most: int = _LARGEST) -> bytes:
    """All of it; OSError if it is not there, is not a regular file, or has more than `most` bytes."""
    with open(path, "rb", opener=open_regular) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, "it is larger than such a file can be", str(path))
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, "it is larger than such a file can be", str(path))
    return data


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in it; NotJson, which is a ValueError, if there is none."""
    value = parse(read_small(path))
    if not isinstance(value, dict):
        raise NotJson("it is not a JSON object")
    checked: dict[str, Any] = check_value(value, "the file")
    return checked


def read_as(path: Path, kind: type[T]) -> T:
    """The JSON object in it, as a `kind`; NotJson if it is not one."""
    return as_kind(read_object(path), kind)


def as_kind(value: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise NotJson(str(error)) from None

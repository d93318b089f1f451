"""Where a sink's path leads: one directory has one spelling here, whatever the user wrote."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from strobe.model.errors import Misuse

__all__ = ["directory_of", "local_path", "real_path"]

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def local_path(path: object, where: str) -> str:
    """The path that a user has given to the sink `where`: a string, a `Path` or `file:` and a path."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path) or isinstance(os.fspath(path), bytes):
        raise Misuse(f"{where}: {path!r} is not the path of a directory.")
    text = str(os.fspath(path))
    if text == "~" or re.match(r"~\w*/", text):
        raise Misuse(
            f"{where}: only a shell takes ~ for somebody's home, so this would be a directory of that name.",
            next="Give the whole path, as os.path.expanduser(…) returns it.",
        )
    if not _SCHEME.match(text):
        return text
    url = urlsplit(text)
    if url.scheme.lower() != "file" or url.netloc not in ("", "localhost") or not url.path.startswith("/"):
        raise Misuse(
            f"{where}: {text!r} is not the path of a directory.",
            next="Give a directory on a file system that all workers share.",
        )
    return unquote(url.path)


def real_path(path: str, base: Path) -> Path:
    """The directory that `path` leads to if relative paths begin at `base`; links are followed."""
    return Path(os.path.realpath(Path(base, path)))


def directory_of(path: str, base: Path, what: str) -> Path:
    """The same for the sink `what`, whose directory it is; Misuse if something else stands there."""
    where = real_path(path, base)
    if where.exists() and not where.is_dir():
        raise Misuse(
            f"{what} cannot be opened: {where} is not a directory.",
            untouched="Nothing was written.",
            next="Give the sink a path of its own.",
        )
    return where

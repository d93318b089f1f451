"""A tree of directories in which somebody else may have put anything: walked by plain names, without following a link.

The root is where a person pointed, and may itself be reached through links. Below it there are directories and regular
files, and nothing else: a symbolic link, a pipe, a socket or a device there is refused, never opened and never passed
through. Each step goes from an open directory to a name in it (`openat` with `O_NOFOLLOW`), so it does not help to put
a link there between the check and the use.

A file is opened without waiting for a writer, so a pipe cannot hold a reader up.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

__all__ = ["NotPlain", "Tree", "copy_regular", "open_regular"]

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device", stat.S_IFDIR: "a directory", stat.S_IFREG: "a regular file",
}  # fmt: skip


class NotPlain(OSError):
    """Something is there that a tree does not hold, or not in that place."""


class Tree:
    """Keys are plain relative paths; the caller has checked them."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def open_read(self, key: str) -> BinaryIO:
        try:
            with self._at(key) as (above, name):
                return open_regular(name, self.root / key, dir_fd=above)
        except FileNotFoundError as error:  # whichever directory is missing, it is this file that is not there
            raise FileNotFoundError(error.errno, error.strerror, str(self.root / key)) from None

    def find(self, key: str) -> os.stat_result | None:
        """What is there, itself and not what it leads to; None if there is nothing."""
        try:
            with self._at(key) as (above, name):
                return os.stat(name, dir_fd=above, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def unlink(self, key: str) -> None:
        """Removes a file, or a link itself. It may be absent."""
        with contextlib.suppress(FileNotFoundError), self._at(key) as (above, name):
            os.unlink(name, dir_fd=above)

    def move(self, key: str, target: Path) -> None:
        """Moves what is there, itself and not what it leads to. It may be absent, as long as there is a place
        to move to."""
        try:
            with self._at(key) as (above, name):
                os.rename(name, target, src_dir_fd=above)
        except FileNotFoundError:
            if not target.parent.is_dir():
                raise

    def is_empty(self, key: str) -> bool:
        """Whether it is a directory with nothing in it."""
        try:
            with self._directory(key.split("/")) as opened:
                return not _entries(opened)
        except OSError:
            return False

    def remove_directory(self, key: str) -> bool:
        """Whether it is gone; not if something is in it."""
        try:
            with self._at(key) as (above, name):
                os.rmdir(name, dir_fd=above)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def check_directory(self, key: str) -> None:
        """NotPlain if it is reached through a link, or is none."""
        with self._directory(key.split("/")):
            pass

    def files(self, directory: str = "") -> Iterator[str]:
        """The keys of all regular files below a directory, but for those with a part that begins with a dot."""
        try:
            with self._directory(directory.split("/") if directory else []) as opened:
                yield from _files(opened, directory)
        except (FileNotFoundError, NotADirectoryError):
            return

    def remove_empty(self) -> None:
        """Removes directories in which there is nothing."""
        with self._directory([]) as root:
            for _, _, _, opened in os.fwalk(".", topdown=False, dir_fd=root):
                for entry in _entries(opened):
                    if entry.is_dir(follow_symlinks=False):
                        with contextlib.suppress(OSError):
                            os.rmdir(entry.name, dir_fd=opened)

    def children(self, key: str) -> list[str]:
        """The names of the directories in a directory; none if there is no such directory."""
        try:
            with self._directory(key.split("/")) as opened:
                return sorted(e.name for e in _entries(opened) if e.is_dir(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def names(self, key: str) -> list[str]:
        """What is in a directory, but for directories."""
        with self._directory(key.split("/")) as opened:
            return [e.name for e in _entries(opened) if not e.is_dir(follow_symlinks=False)]

    def open_file(self, key: str, flags: int) -> int:
        """A regular file, opened to write: made if `flags` say so, never reached through a link."""
        with self._at(key) as (above, name):
            try:
                file = os.open(name, flags | _FILE, 0o666, dir_fd=above)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):
                    raise _not_plain(self.root / key, "a regular file") from None
                raise
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise _not_plain(self.root / key, "a regular file")
        return file

    def remove_tree(self, key: str) -> None:
        """A directory with all that is in it; links in it go, and what they lead to stays."""
        with self._at(key) as (above, name):
            shutil.rmtree(name, dir_fd=above)

    @contextlib.contextmanager
    def _at(self, key: str) -> Iterator[tuple[int, str]]:
        *above, name = key.split("/")
        with self._directory(above) as opened:
            yield opened, name

    @contextlib.contextmanager
    def _directory(self, names: list[str]) -> Iterator[int]:
        opened = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for depth in range(len(names)):
                below = _open_directory(self.root, names[: depth + 1], opened)
                os.close(opened)
                opened = below
            yield opened
        finally:
            os.close(opened)


def open_regular(path: str | Path, described: Path | None = None, *, dir_fd: int | None = None) -> BinaryIO:
    """A regular file to read, or NotPlain; the last part of the path is not followed if it is a link."""
    where = Path(path) if described is None else described
    try:
        file = os.open(path, os.O_RDONLY | _FILE, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):  # a link; a socket or a device without a driver
            raise _not_plain(where, "a regular file", path, dir_fd) from None
        raise OSError(error.errno, error.strerror, str(where)) from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise _not_plain(where, "a regular file", path, dir_fd)
    return open(file, "rb")


def copy_regular(source: Path, target: Path) -> None:
    """The bytes of a regular file, which is not a link, to a new file."""
    with open_regular(source) as read, target.open("xb") as write:
        shutil.copyfileobj(read, write)


def _open_directory(root: Path, names: list[str], above: int) -> int:
    """The last of these names, one below the other; the one before it is open as `above`."""
    try:
        return os.open(names[-1], _DIRECTORY, dir_fd=above)
    except OSError as error:
        path = root.joinpath(*names)
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise _not_plain(path, "a directory", names[-1], above) from None
        raise OSError(error.errno, error.strerror, str(path)) from None


def _not_plain(path: Path, should: str, name: str | Path = "", dir_fd: int | None = None) -> OSError:
    kind = "something else"
    with contextlib.suppress(OSError):
        found = os.stat(name or path, dir_fd=dir_fd if name else None, follow_symlinks=False)
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), kind)
    if kind == "a regular file" and should == "a directory":  # no trick: a file where a directory should be
        return NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    return NotPlain(errno.EINVAL, f"it is {kind}, where {should} should be", str(path))


def _entries(directory: int) -> list[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        return list(entries)


def _files(directory: int, above: str) -> Iterator[str]:
    for entry in _entries(directory):
        if entry.name.startswith("."):
            continue
        key = f"{above}/{entry.name}" if above else entry.name
        if entry.is_file(follow_symlinks=False):
            yield key
        elif entry.is_dir(follow_symlinks=False):
            try:
                below = os.open(entry.name, _DIRECTORY, dir_fd=directory)
            except FileNotFoundError:
                continue  # deleted since it was seen: it hides nothing of what is beside it
            try:
                yield from _files(below, key)
            finally:
                os.close(below)

"""A disk that fails: system calls of simulated tasks are points, may be refused, and are durable only once synced.

The files are real ones below one directory in memory, so that whatever reads them is the host's own code. What is
played is what a disk does between a write and its fsync. Beside the real tree there is the *durable* one: the content
that each file had when it was last synced, and the names that each directory had when it was. When power fails, each
change since then has reached the disk or has not, as the seed says; a file that was never synced may be whole, torn or
empty. A name that moved is lost, there twice, or moved: what a file system with a journal rules out, nothing of Strobe
relies on.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import shutil
import stat
from _thread import get_ident
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.hostsim.scheduler import Scheduler

__all__ = ["Disk", "Replacement", "replaced"]

Replacement = tuple[Any, str, Any]  # of whom, which name, by what
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Disk:
    def __init__(self, scheduler: Scheduler, root: Path) -> None:
        self._scheduler = scheduler
        self.root = root
        self._root = str(root)
        self._content: dict[int, bytes] = {}
        self._names: dict[int, dict[str, tuple[int, bool]]] = {}  # of a directory: (inode, whether it is one itself)
        self.refusals = 0  # how many of the next system calls that need room fail
        self.refused = 0
        self.error = errno.ENOSPC
        self.on_named: Callable[[str], None] = lambda path: None  # a file has got this name
        self.on_removed: Callable[[str], None] = lambda path: None  # a file is about to lose this name
        self._random = 0
        self._apart = False
        self._sync_directory(root)

    # ── what is durable ─────────────────────────────────────────────────────────────────────────────────────────────

    def durable(self, path: str | Path) -> bytes | None:
        """What a file would hold if power failed now and nothing that was not synced survived; None if it is lost."""
        at = os.stat(self.root).st_ino
        *above, name = str(path).removeprefix(f"{self._root}/").split("/")
        for part in above:
            found = self._names.get(at, {}).get(part)
            if found is None or not found[1]:
                return None
            at = found[0]
        found = self._names.get(at, {}).get(name)
        return None if found is None or found[1] else self._content.get(found[0])

    def _sync(self, handle: int) -> None:
        found = os.fstat(handle)
        if stat.S_ISDIR(found.st_mode):
            self._names[found.st_ino] = _entries(handle)
        else:
            self._content[found.st_ino] = _whole(handle)

    def _sync_directory(self, path: Path) -> None:
        handle = _OPEN(path, os.O_RDONLY)
        self._sync(handle)
        _CLOSE(handle)

    def fail_power(self, *, takes: str = "") -> None:
        """Of what was not synced, some is there and some is not. Nobody runs any more. `takes`: all of it is there, but
        for the contents of files with this in their path."""
        files: dict[str, bytes] = {}
        directories: list[str] = []
        if takes:
            self._lose(takes, files, directories)
        else:
            self._survive(os.stat(self.root).st_ino, self.root, "", files, directories)
        for entry in os.scandir(self.root):
            shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)
        self._content.clear()
        self._names.clear()
        for name in directories:
            os.mkdir(self.root / name)
        for name, content in files.items():
            (self.root / name).write_bytes(content)
        for above, _, names in os.walk(self.root):  # what is there now is on the disk
            for name in names:
                self._content[os.stat(os.path.join(above, name)).st_ino] = files[
                    os.path.relpath(os.path.join(above, name), self.root)
                ]
            self._sync_directory(Path(above))

    def _lose(self, takes: str, files: dict[str, bytes], directories: list[str]) -> None:
        for above, below, names in os.walk(self.root):
            place = Path(above).relative_to(self.root)
            directories += [str(place / name) for name in below]
            for name in names:
                path = Path(above, name)
                synced = self._content.get(path.stat().st_ino, b"")
                files[str(place / name)] = synced if takes in str(path) else path.read_bytes()

    def _survive(
        self, inode: int, path: Path | None, name: str, files: dict[str, bytes], directories: list[str]
    ) -> None:
        """`path` is where this directory is now, if it still is."""
        rng = self._scheduler.rng
        then = self._names.get(inode, {})
        now: dict[str, tuple[int, bool]] = {}
        if path is not None:
            handle = _OPEN(path, os.O_RDONLY)
            now = _entries(handle)
            _CLOSE(handle)
        for entry in sorted(then.keys() | now.keys()):
            old, new = then.get(entry), now.get(entry)
            kept = new if old == new or rng.random() < 0.5 else old
            if kept is None:
                continue
            key = f"{name}/{entry}" if name else entry
            here = path / entry if path is not None and kept == new else None
            if kept[1]:
                directories.append(key)
                self._survive(kept[0], here, key, files, directories)
            else:
                files[key] = self._bytes(kept[0], here)

    def _bytes(self, inode: int, path: Path | None) -> bytes:
        synced = self._content.get(inode)
        current = path.read_bytes() if path is not None else None
        if current is None or current == synced:
            return synced or b""
        rng = self._scheduler.rng
        return rng.choice((current, current, synced or b"", current[: rng.randrange(len(current) + 1)]))

    def remove(self, place: Path) -> None:
        """Somebody empties a directory, for good: nothing comes in between."""
        self._apart = True
        try:
            for path in place.iterdir():
                shutil.rmtree(path)
            for above, _, _ in os.walk(self.root):
                self._sync_directory(Path(above))
        finally:
            self._apart = False

    # ── system calls ────────────────────────────────────────────────────────────────────────────────────────────────

    def _point(self, what: str, path: Any, *, room: bool = False) -> None:
        if self._scheduler.current is None or self._apart:
            return
        name = os.fspath(path) if not isinstance(path, int) else _path_of(path)
        self._scheduler.point(f"{what} {str(name).removeprefix(self._root)}")
        if room and self.refusals > 0 and self._scheduler.current.process.name != "world":
            self.refusals -= 1
            self.refused += 1
            raise OSError(self.error, os.strerror(self.error), str(name))

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & _WRITING:
            self._point("open", path, room=bool(flags & os.O_CREAT))
        handle = _OPEN(path, flags, mode, dir_fd=dir_fd)
        if self._scheduler.current is not None:
            self._scheduler.current.process.handles.add(handle)
        return handle

    def _close(self, handle: int) -> None:
        current = self._scheduler.current
        if current is not None:
            if current.process.dead and handle not in current.process.handles:
                return  # the kernel has closed it
            current.process.handles.discard(handle)
        _CLOSE(handle)

    def close_handle(self, handle: int) -> None:
        """For a process that has died."""
        _CLOSE(handle)

    def _open_file(self, file: Any, mode: str = "r", *args: Any, **named: Any) -> Any:
        writing = any(letter in mode for letter in "wax+")
        if self._scheduler.current is None:
            return _OPEN_FILE(file, mode, *args, **named)
        if isinstance(file, int):
            self._scheduler.current.process.handles.discard(file)  # the object closes it
        elif writing:
            self._point("open", file, room=True)
        opened = _OPEN_FILE(file, mode, *args, **named)
        self._scheduler.current.process.handles.discard(opened.fileno())  # an opener's; the object closes it, too
        return _Written(self, opened, file) if writing else opened

    def _fsync(self, handle: int) -> None:
        self._point("fsync", _path_of(handle), room=True)
        self._sync(handle)

    def _rename(self, source: Any, target: Any, **named: Any) -> None:
        self._point(f"rename {_name(source)} to", target)
        _RENAME(source, target, **named)
        self.on_named(os.fspath(target))

    def _replace(self, source: Any, target: Any, **named: Any) -> None:
        self._point(f"rename {_name(source)} to", target)
        _REPLACE(source, target, **named)
        self.on_named(os.fspath(target))

    def _link(self, source: Any, target: Any, **named: Any) -> None:
        self._point(f"link {_name(source)} to", target, room=True)
        _LINK(source, target, **named)
        self.on_named(os.fspath(target))

    def _before(self, what: str, real: Callable[..., Any], *, room: bool = False) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **named: Any) -> Any:
            self._point(what, path, room=room)
            return real(path, *args, **named)

        return call

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._point("unlink", path)
        if self._scheduler.current is not None and not self._apart:
            name = os.fspath(path)
            self.on_removed(name if dir_fd is None else os.path.join(_path_of(dir_fd), name))
        _UNLINK(path, dir_fd=dir_fd)

    def _utime(self, path: Any, *args: Any, **named: Any) -> None:
        """A sign of life: the simulated time, not the machine's."""
        now = int(self._scheduler.now * 1e9)
        self._point("utime", path)
        _UTIME(path, ns=(now, now))

    def _urandom(self, count: int) -> bytes:
        if self._scheduler.current is None:
            return _URANDOM(count)
        self._random += 1
        return self._random.to_bytes(count, "big")

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        calls: dict[str, Any] = {
            "open": self._open, "close": self._close, "fsync": self._fsync, "rename": self._rename,
            "replace": self._replace, "link": self._link, "utime": self._utime, "urandom": self._urandom,
            "unlink": self._unlink, "remove": self._unlink,
            "mkdir": self._before("mkdir", _MKDIR, room=True), "rmdir": self._before("rmdir", _RMDIR),
            "truncate": self._before("truncate", _TRUNCATE),
        }  # fmt: skip
        targets = [(os, name, call) for name, call in calls.items()]
        targets += [(io, "open", self._open_file), (builtins, "open", self._open_file)]
        with replaced(*((target, name, _here_only(call, getattr(target, name))) for target, name, call in targets)):
            yield


def _here_only(call: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    """A thread that another test has left behind is none of the simulator's, whatever its scheduler runs just now."""
    mine = get_ident()

    def chosen(*args: Any, **named: Any) -> Any:
        return (call if get_ident() == mine else real)(*args, **named)

    return chosen


@contextlib.contextmanager
def replaced(*replacements: Replacement) -> Iterator[None]:
    """What `mock.patch.object` does, without its cost: there are a hundred for each schedule."""
    before = []
    try:
        for target, name, value in replacements:
            own = vars(target)
            before.append((target, name, name in own, own.get(name)))
            setattr(target, name, value)
        yield
    finally:
        for target, name, was_own, old in reversed(before):
            if was_own:
                setattr(target, name, old)
            else:
                delattr(target, name)


class _Written:
    """A file that is being written: its first bytes are there before the others."""

    def __init__(self, disk: Disk, file: Any, path: Any) -> None:
        self._disk, self._file, self._path = disk, file, path
        self._begun = False

    def write(self, data: Any) -> int:
        if not self._begun:
            self._begun = True
            half = len(data) // 2
            self._file.write(data[:half])
            if half:
                self._file.flush()
            self._disk._point("write", self._path if not isinstance(self._path, int) else "", room=True)
            self._file.write(data[half:])
            return len(data)
        return int(self._file.write(data))

    def __enter__(self) -> _Written:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _entries(handle: int) -> dict[str, tuple[int, bool]]:
    with os.scandir(handle) as entries:
        return {e.name: (e.inode(), e.is_dir(follow_symlinks=False)) for e in entries}


def _whole(handle: int) -> bytes:
    with _OPEN_FILE(f"/proc/self/fd/{handle}", "rb", buffering=0) as file:
        return bytes(file.read())


def _path_of(handle: int) -> str:
    return os.readlink(f"/proc/self/fd/{handle}")


def _name(path: Any) -> str:
    return str(os.path.basename(os.fspath(path)))


_OPEN, _CLOSE, _OPEN_FILE, _RENAME, _REPLACE, _LINK = os.open, os.close, io.open, os.rename, os.replace, os.link
_UNLINK, _MKDIR, _RMDIR, _UTIME, _URANDOM, _TRUNCATE = (
    os.unlink, os.mkdir, os.rmdir, os.utime, os.urandom, os.truncate,
)  # fmt: skip

"""Objects as files below a directory.

Theory
------
A put writes a temporary file, makes it durable, gives it its name, and makes the name durable: in this order, so a
name never leads to bytes that power can still take away. Names are given by rename, which replaces whole files, or,
where only an absent key may be written, by link, which the kernel refuses if the name is taken.

A batch does each of the four steps for all of its files before the next one: the file syncs run side by side, which
lets the file system's journal commit them together, and every directory is synced once. A directory that is not known
to be durable itself has its parent synced too, up to the root.

Content that is there already is not written again. Its directory is synced all the same: whoever wrote the name may
have died, or be waiting, just before doing so.

A writer that may be fenced off has a directory of its own (see `fencing`). Its temporary files are in there, and what
it deletes is moved there first: once the directory is gone, nothing of it becomes visible, and it removes nothing.

The tree may have come from somebody else: what is read or deleted is found by `Tree`, which follows no link.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from strobe.model.errors import Failed, Fenced
from strobe.store.base import CHUNK, Absent, AlreadyThere, Data, Written, check_key, has_content
from strobe.store.points import OnPoint, no_point
from strobe.store.scratch import Scratch, remove_stale
from strobe.store.tree import NotPlain, Tree

__all__ = ["FilesystemStore"]

T = TypeVar("T")

_SMALL: Final = 1 << 20  # up to here a file is read at once: if its content is there already, nothing is written
_SYNC_THREADS: Final = 4  # 200 files of 8 kB on ext4: 1 → 200 ms, 4 → 33 ms, 16 → 30 ms


class FilesystemStore:
    """`root` is created by the first put. Reading writes nothing."""

    def __init__(self, root: Path, *, on_point: OnPoint = no_point, own: Path | None = None) -> None:
        """`own` is the directory of a writer that may be fenced off; it is there."""
        self.root = root.absolute()
        self._own = own
        self._names = itertools.count(1)
        self._tree = Tree(self.root)
        self._on_point = on_point
        self._scratch: Scratch | None = None
        self._lock = threading.Lock()  # over the tree of directories and the four fields below it
        self._durable: set[Path] = set()  # directories whose own names are durable, up to the root
        self._prunes = 0  # how often a directory was removed: what was learned before may not hold after
        self._closed = False
        self._compared: set[str] = set()  # content that this process has written or compared: keys

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        batch = _FileBatch(self)
        with self._explained(key):
            try:
                batch.put(key, data)
                batch.publish(if_absent=if_absent)
            finally:
                batch.discard()

    @contextlib.contextmanager
    def batch(self) -> Iterator[_FileBatch]:
        batch = _FileBatch(self)
        try:
            yield batch
            with self._explained(""):
                batch.publish(if_absent=False)
        finally:
            batch.discard()

    def delete(self, key: str) -> None:
        check_key(key)
        with self._explained(key), self._lock:
            self._unlink(key)
            directory = key.rpartition("/")[0]
            while directory and self._remove_directory(directory):
                self._prunes += 1
                self._durable.discard(self.root / directory)
                directory = directory.rpartition("/")[0]
            self._on_point("store.file.deleted")
            _sync_directory(self.root / directory)

    def withdraw(self, key: str) -> None:
        self.delete(key)  # the kernel has nothing left to do

    def discard(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._compared.discard(key)
            with self._explained(key):
                self._unlink(check_key(key))
            self._on_point("store.file.deleted")

    def confirm(self, keys: Iterable[str]) -> None:
        directories = {above for key in keys for above in _up_to(self._path(key).parent, self.root)}
        with self._explained(""):
            for directory in sorted(directories | {self.root} if directories else ()):
                _sync_directory(directory)

    def clean(self) -> int:
        with self._explained(""):
            return remove_stale(self.root)

    def close(self) -> None:
        """No put may be running. The store may be read afterwards."""
        with self._lock:
            self._closed = True
            if self._scratch is not None:
                self._scratch.close()
                self._scratch = None
            if self._own is not None:
                shutil.rmtree(self._own, ignore_errors=True)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, key: str) -> bytes:
        with self.open_read(key) as file, self._explained(key):
            return file.read()

    def open_read(self, key: str) -> BinaryIO:
        with self._explained(key):
            return self._tree.open_read(check_key(key))

    def size(self, key: str) -> int | None:
        with self._explained(key):
            try:
                found = self._tree.find(check_key(key))
            except (NotADirectoryError, NotPlain):
                return None
            return found.st_size if found is not None and stat.S_ISREG(found.st_mode) else None

    def sizes(self, keys: Iterable[str]) -> dict[str, int]:
        return {key: size for key in keys if (size := self.size(key)) is not None}

    def list(self, prefix: str) -> Iterator[str]:
        directory = prefix.rpartition("/")[0]
        with self._explained(prefix):
            keys = [key for key in self._tree.files(directory) if key.startswith(prefix)]
        return iter(sorted(keys))

    def describe(self, key: str = "") -> str:
        return str(self.root / key)

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _holds(self, key: str, sha256: str, size: int) -> bool:
        """Whether the content is there, whole: seen with our own eyes once, by its size from then on."""
        if self.size(key) != size:
            return False
        if key not in self._compared:
            try:
                if not has_content(self.open_read(key), sha256):
                    return False
            except Absent:  # somebody has discarded it since
                return False
            self._compared.add(key)
        return True

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)

    def _new_temporary(self) -> Path:
        with self._lock:
            if self._closed:
                raise Failed(f"The store at {self.root} was closed.", untouched="Nothing was written.")
            if self._own is not None:
                return self._own / str(next(self._names))
            if self._scratch is None:
                self._make_root()
                self._scratch = Scratch(self.root)
            return self._scratch.new_path()

    def _unlink(self, key: str) -> None:
        self._on_point("store.file.doomed")
        if self._own is None:
            self._tree.unlink(key)
            return
        found = self._tree.find(key)
        if found is None:
            return
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(self.root / key))
        doomed = self._own / f"gone-{next(self._names)}"
        self._tree.move(key, doomed)
        doomed.unlink(missing_ok=True)

    def _remove_directory(self, key: str) -> bool:
        """Whether it is gone; not if something is in it."""
        if self._own is None:
            return self._tree.remove_directory(key)
        if not self._tree.is_empty(key):
            return False
        doomed = self._own / f"gone-{next(self._names)}"
        self._tree.move(key, doomed)
        with contextlib.suppress(OSError):
            doomed.rmdir()
        return True

    def _make_root(self) -> None:
        made = [p for p in (self.root, *self.root.parents) if not p.exists()]
        self.root.mkdir(parents=True, exist_ok=True)
        for directory in made:
            _sync_directory(directory.parent)

    def _make_directory(self, directory: Path) -> set[Path]:
        """Makes it, and says which directories must be synced before its name is durable. Needs the lock."""
        to_sync = set[Path]()
        missing = list[Path]()
        while directory != self.root and directory not in self._durable:
            missing.append(directory)
            directory = directory.parent
            to_sync.add(directory)
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
            self._tree.check_directory(each.relative_to(self.root).as_posix())
        return to_sync

    @contextlib.contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        """Says in Strobe's words what the operating system refused."""
        try:
            yield
        except OSError as error:
            if self._own is not None and not self._own.is_dir():
                raise Fenced(
                    f"This writer of {self.root} is fenced off: {self._own} is gone.",
                    untouched="Nothing was made visible, and nothing deleted.",
                    next="A newer run of this job has taken over; this one must stop.",
                ) from None
            path = error.filename or self.root / key
            raise self._explain(error, f"{path}") from error

    def _explain(self, error: OSError, path: str) -> Failed:
        if isinstance(error, NotPlain):
            return Failed(
                f"{path} is not used: {error.strerror}.",
                untouched="Nothing was followed, read or written there.",
                next="A store holds directories and regular files only: find out who put that there, and remove it.",
            )
        if error.errno == errno.ENOENT:
            return Absent(f"There is no {path}.", untouched="Nothing was changed.")
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return Failed(
                f"No room to write {path}: {error.strerror}, {_free_room(self.root)} free.",
                untouched="Nothing of it is visible; what was stored before is untouched.",
                next=f"Make room on the disk that holds {self.root}.",
            )
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            return Failed(
                f"Not allowed to use {path}: {error.strerror}.",
                untouched="Nothing was changed.",
                next=f"Let this user read and write {self.root}, or choose another home directory.",
            )
        return Failed(
            f"{path}: {error.strerror or error}.",
            untouched="What was stored before is untouched.",
            next=f"Check the disk that holds {self.root}.",
        )


class _FileBatch:
    """Files on their way: written without a name, then published together. One thread at a time."""

    def __init__(self, store: FilesystemStore) -> None:
        self._store = store
        self._waiting: dict[str, Path] = {}
        self._seen: set[Path] = set()  # directories of content that was there already
        self._content: set[str] = set()  # what this batch brings

    def put(self, key: str, data: Data) -> None:
        check_key(key)
        with self._store._explained(key):
            self._accept(key, self._write(data, lambda chunk: None))

    def put_content(self, data: Data, key_for: Callable[[str], str]) -> Written:
        with self._store._explained(""):
            if isinstance(data, Path) and data.stat().st_size <= _SMALL:
                data = data.read_bytes()
            if isinstance(data, bytes):
                sha256, size, temporary = hashlib.sha256(data).hexdigest(), len(data), None
            else:
                hasher = hashlib.sha256()
                temporary = self._write(data, hasher.update)
                sha256, size = hasher.hexdigest(), temporary.stat().st_size
            key = check_key(key_for(sha256))
            if key in self._waiting or self._store._holds(key, sha256, size):
                if temporary is not None:
                    temporary.unlink()
                if key not in self._waiting:
                    self._seen.add(self._store._path(key).parent)
                return Written(sha256, size, new=False)
            self._accept(key, temporary or self._write(data, lambda chunk: None))
            self._content.add(key)
            return Written(sha256, size, new=True)

    def publish(self, *, if_absent: bool) -> None:
        store, on_point = self._store, self._store._on_point
        if not self._waiting and not self._seen:
            return
        _side_by_side(_sync_file, list(self._waiting.values()))
        on_point("store.file.synced")
        with store._lock:
            to_sync, made = set(self._seen), {store._path(key).parent for key in self._waiting}
            for directory in sorted(made | self._seen):
                to_sync |= store._make_directory(directory)
            prunes = store._prunes
            for key, temporary in self._waiting.items():
                _name(temporary, store._path(key), if_absent=if_absent)
                on_point("store.file.visible")
        _side_by_side(_sync_directory, sorted(to_sync | made))
        with store._lock:
            if prunes == store._prunes:
                for directory in to_sync | made:
                    store._durable.update(_up_to(directory, store.root))
        self._waiting.clear()
        store._compared |= self._content
        on_point("store.file.durable")

    def discard(self) -> None:
        for temporary in self._waiting.values():
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        self._waiting.clear()

    def _accept(self, key: str, temporary: Path) -> None:
        replaced = self._waiting.get(key)
        self._waiting[key] = temporary
        if replaced is not None:
            replaced.unlink()
        self._store._on_point("store.file.written")

    def _write(self, data: Data, see: Callable[[memoryview], None]) -> Path:
        path = self._store._new_temporary()
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), "wb", 0) as target:
                if isinstance(data, bytes):
                    _write_all(target, data)
                else:
                    buffer = memoryview(bytearray(CHUNK))
                    with data.open("rb", 0) as source:
                        while count := source.readinto(buffer):
                            see(buffer[:count])
                            _write_all(target, buffer[:count])
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path


def _write_all(target: Any, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[target.write(rest) :]


def _name(temporary: Path, path: Path, *, if_absent: bool) -> None:
    if not if_absent:
        os.replace(temporary, path)
        return
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise AlreadyThere(f"{path} is there already.", untouched="It was left as it is.") from None
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise Failed(
                f"{path} could not be named by a hard link ({error.strerror}), and without one nothing tells whether "
                "the name is free.",
                untouched="Nothing was changed.",
                next="Choose a home directory on a file system with hard links.",
            ) from error
        raise
    temporary.unlink(missing_ok=True)


def _up_to(directory: Path, root: Path) -> Iterator[Path]:
    while directory != root:
        yield directory
        directory = directory.parent


def _side_by_side(sync: Callable[[Path], None], paths: list[Path]) -> None:
    if len(paths) < _SYNC_THREADS:
        for path in paths:
            sync(path)
        return
    with ThreadPoolExecutor(_SYNC_THREADS, thread_name_prefix="strobe-sync") as pool:
        for done in [pool.submit(sync, path) for path in paths]:
            done.result()


def _sync_file(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _sync_directory(path: Path) -> None:
    # A directory that is gone was emptied by a delete that came after: there is no name left to keep.
    with contextlib.suppress(FileNotFoundError):
        _sync_file(path)


def _free_room(path: Path) -> str:
    while not path.exists() and path != path.parent:
        path = path.parent
    return f"{shutil.disk_usage(path).free:,} bytes"

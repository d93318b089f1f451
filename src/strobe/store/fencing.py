"""One writer of a job's checkpoints: what one that was given up has yet to do, it does to nobody.

Theory
------
A driver asks whether it is still the job's driver, and then acts. It may be stopped between the two for any time, while
another one takes over and finishes. So asking is not enough: the act itself must fail, or hit nothing.

*In a directory* each incarnation has a place of its own, `writer-N`. A file becomes visible by being moved out of it,
and is deleted by being moved into it. Who takes over makes its own place and then moves the older ones away: from that
moment on a move of an older writer finds no such directory, however long ago it was begun. One system call is the
check and the act.

*In a bucket* nothing is moved, and a delete knows no condition. There a takeover begins a new *epoch*: a prefix of its
own for manifests and blobs, into which the complete snapshots are copied (by the store itself). A marker, put when the
copy is whole, makes it the current one; readers look at the newest. An older writer goes on putting and deleting in its
own epoch, where nobody looks, and which goes as soon as it has been left.

Epochs are the generations of the job's home, which rise whenever a driver did not end in an orderly way: after an
orderly end nobody is left who could write, and the next one goes on in the same epoch.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeGuard

from strobe.model.errors import Fenced, StrobeError
from strobe.model.ids import SnapshotId
from strobe.store.base import Absent, AlreadyThere, ObjectStore
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JobLayout
from strobe.store.points import OnPoint, no_point

if TYPE_CHECKING:
    from strobe.store.s3 import S3Store

__all__ = ["current_layout", "take_over"]

_log = logging.getLogger("strobe.store")
_COPYING: Final = 16  # threads
_GONE: Final = ".gone"


def current_layout(objects: ObjectStore, job: str) -> JobLayout:
    """Where the job's checkpoints are in this store now."""
    if isinstance(objects, FilesystemStore) or not _is_bucket(objects):
        return JobLayout(job)
    return JobLayout(job, max(_epochs(objects, job), default=0))


def _is_bucket(objects: ObjectStore) -> TypeGuard[S3Store]:
    from strobe.store.s3 import S3Store  # who has no bucket need not wait for what speaks to one

    return isinstance(objects, S3Store)


def take_over(
    objects: ObjectStore, job: str, *, incarnation: int, generation: int, on_point: OnPoint = no_point
) -> tuple[ObjectStore, JobLayout]:
    """The store as this incarnation writes it, and the layout that it writes by. From here on no older one does.

    Fenced if a newer one is there already.
    """
    if isinstance(objects, FilesystemStore):
        own = _own_directory(objects.root, JobLayout(job), incarnation)
        return FilesystemStore(objects.root, on_point=on_point, own=own), JobLayout(job)
    if _is_bucket(objects):
        return objects, _enter_epoch(objects, job, generation)
    return objects, JobLayout(job)


# ── a directory ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _own_directory(root: Path, layout: JobLayout, incarnation: int) -> Path:
    own = root / layout.writer(incarnation)
    own.parent.mkdir(parents=True, exist_ok=True)
    own.mkdir(mode=0o700, exist_ok=True)
    others = {n: p for p in own.parent.iterdir() if (n := layout.writer_of(p.name)) is not None and p != own}
    newer = max((n for n in others if n > incarnation), default=None)
    if newer is not None:  # it has made its own before it looked: one of the two sees the other
        shutil.rmtree(own, ignore_errors=True)
        raise _fenced(layout.job, incarnation, newer)
    for path in others.values():
        gone = path.with_name(path.name + _GONE)
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, gone)
        shutil.rmtree(gone, ignore_errors=True)
    for left in own.parent.glob(f"*{_GONE}"):  # of one that died while it did this
        if layout.writer_of(left.name.removesuffix(_GONE)) is not None:
            shutil.rmtree(left, ignore_errors=True)
    return own


# ── a bucket ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _epochs(objects: S3Store, job: str) -> set[int]:
    layout = JobLayout(job)
    found = (layout.epoch_of(key) for key in objects.list(layout.epochs))
    return {epoch for epoch in found if epoch is not None}


def _enter_epoch(objects: S3Store, job: str, generation: int) -> JobLayout:
    now = current_layout(objects, job)
    if now.epoch > generation:
        raise _fenced(job, generation, now.epoch)
    if now.epoch == generation:
        return now
    new = JobLayout(job, generation)
    objects.discard(objects.list(new.checkpoints))  # nobody ever looked there
    _copy(objects, now, new)
    with contextlib.suppress(AlreadyThere):
        objects.put(new.epoch_marker, json.dumps({"epoch": generation}).encode(), if_absent=True)
    try:
        _leave(objects, new)
    except StrobeError as error:
        _log.warning("Job %s: what an earlier epoch left at %s stays for now. %s", job, objects.describe(), error)
    return new


def _copy(objects: S3Store, old: JobLayout, new: JobLayout) -> None:
    """Every complete snapshot: blobs first, then manifests, as always. One that goes meanwhile need not come along."""
    from strobe.store.check import read_manifest

    found = (old.snapshot_of(key) for key in objects.list(old.manifests))
    manifests: dict[SnapshotId, bytes] = {}
    wanted: dict[SnapshotId, set[str]] = {}
    for snapshot in sorted(s for s in found if s is not None):
        try:
            manifests[snapshot] = objects.get(old.manifest(snapshot))
            read = read_manifest(objects, old.manifest(snapshot), snapshot, old.job)
            wanted[snapshot] = {ref.sha256 for _, ref in read.blobs()}
        except Absent:
            manifests.pop(snapshot, None)
        except StrobeError:  # it cannot be read: it may need any blob
            wanted[snapshot] = {sha for key in objects.list(old.blobs) if (sha := old.sha256_of(key)) is not None}
    with ThreadPoolExecutor(_COPYING, thread_name_prefix="strobe-s3") as pool:
        blobs = sorted(set().union(*wanted.values()))
        there = dict(zip(blobs, pool.map(_copier(objects, old, new), blobs), strict=True))
    for snapshot, data in manifests.items():
        missing = sum(not there[sha256] for sha256 in wanted[snapshot])
        if missing:
            _log.warning("Job %s: %d blobs of snapshot %s are gone.", old.job, missing, snapshot)
        if not missing or objects.size(old.manifest(snapshot)) is not None:  # damaged, then, and to be told so
            with contextlib.suppress(Absent):
                objects.copy(old.signature(snapshot), new.signature(snapshot))
            objects.put(new.manifest(snapshot), data)


def _copier(objects: S3Store, old: JobLayout, new: JobLayout) -> Callable[[str], bool]:
    def copy(sha256: str) -> bool:
        try:
            objects.copy(old.blob(sha256), new.blob(sha256))
        except Absent:
            return False
        return True

    return copy


def _leave(objects: S3Store, new: JobLayout) -> None:
    """Delete what older epochs hold. Never a newer one's, nor what is not of an epoch."""
    doomed: list[str] = []
    for epoch in sorted(set(_prefixes(objects, new)) | {0}):
        if epoch < new.epoch:
            old = JobLayout(new.job, epoch)
            doomed += [*objects.list(old.manifests), *objects.list(old.blobs)]
            doomed += [old.epoch_marker] if epoch else []
    objects.discard(doomed)


def _prefixes(objects: S3Store, layout: JobLayout) -> Iterable[int]:
    for key in objects.list(layout.all_epochs):
        epoch = layout.epoch_in(key)
        if epoch is not None:
            yield epoch


def _fenced(job: str, mine: int, newest: int) -> Fenced:
    return Fenced(
        f"Writer {mine} of the checkpoints of job {job!r} is fenced off by writer {newest}.",
        untouched="Nothing was written.",
        next="A newer run of this job has taken over; this one must stop.",
    )

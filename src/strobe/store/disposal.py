"""Deleting one snapshot because somebody said so, to the end, whatever crashes when.

Theory
------
A mark (`disposing.json`) is put beside the manifest first, then the snapshot goes as snapshots go: the manifest, then
the blobs that nothing else needs, and the mark last. Up to the moment at which the manifest goes, it is whole;
from then on it is none, and the mark says that what is left is to be deleted. So the same call, made again after a
crash, finds either the snapshot or the mark, and finishes.

Only what is recognised as a snapshot, or carries a mark, is ever deleted; a savepoint's directory goes if nothing of
anybody else's is in it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from strobe.model.errors import Misuse
from strobe.model.ids import SnapshotId, check_uid
from strobe.model.strict_json import parse
from strobe.store.base import Absent, ObjectStore
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import BUCKET_SAVEPOINT_MARKER, SAVEPOINT_MARKER, SavepointLayout
from strobe.store.locate import Located, in_job, job_at, locate
from strobe.store.places import open_objects
from strobe.store.points import OnPoint, no_point
from strobe.store.scheme import is_s3
from strobe.store.snapshots import SnapshotStore
from strobe.store.tree import Tree

__all__ = ["dispose", "find"]

_MARK: Final = "disposing.json"
_LARGEST_MARK: Final = 1 << 16


def find(name: str, home: Path) -> Located:
    """The snapshot that `name` names, or what is left of one whose disposal was cut short."""
    try:
        return locate(name, home)
    except Misuse:
        left = _left_over(name, home)
        if left is None:
            raise
        return left


def dispose(found: Located, guard: Callable[[], None] = lambda: None, on_point: OnPoint = no_point) -> None:
    """Deletes it. `guard` raises if the caller may no longer write to the job's store."""
    objects, layout, snapshot = found.store.objects, found.store.layout, found.snapshot
    store = SnapshotStore(objects, layout, found.store.job, guard=guard, on_point=on_point)
    mark = layout.directory(snapshot) + _MARK
    guard()
    if objects.size(layout.manifest(snapshot)) is not None:
        objects.put(mark, json.dumps({"job": found.store.job, "snapshot": snapshot}).encode())
        store.dispose(snapshot)
    store.sweep()
    if isinstance(layout, SavepointLayout):  # whose writer may have died right after the manifest
        objects.delete(layout.directory(snapshot) + BUCKET_SAVEPOINT_MARKER)
    alone = objects if isinstance(layout, SavepointLayout) and isinstance(objects, FilesystemStore) else None
    if alone is not None:
        with contextlib.suppress(OSError):  # what has its name and is no file is somebody else's
            (alone.root / SAVEPOINT_MARKER).unlink(missing_ok=True)
        Tree(alone.root).remove_empty()
    objects.delete(mark)
    if alone is not None:
        alone.close()
        Tree(alone.root).remove_empty()
        with contextlib.suppress(OSError):  # somebody keeps something there
            alone.root.rmdir()


def _left_over(name: str, home: Path) -> Located | None:
    job = job_at(name, home)
    if job is not None:
        store, snapshot, its_home = job
        key = store.layout.directory(snapshot) + _MARK
        return None if store.objects.size(key) is None else in_job(store, snapshot, its_home)
    if is_s3(name):
        objects: ObjectStore = open_objects(name)
    elif Path(name).is_dir():
        objects = FilesystemStore(Path(name))
    else:
        return None
    try:
        if (objects.size(_MARK) or 0) > _LARGEST_MARK:
            return None
        value = parse(objects.get(_MARK))
        layout = SavepointLayout("", SnapshotId(int(value["snapshot"])))
        store = SnapshotStore(objects, layout, check_uid(value["job"], "job"))
    except (Absent, ValueError, KeyError, TypeError, Misuse):
        return None
    return Located(store, layout.snapshot, objects.describe())

"""From what a person types to a snapshot.

A snapshot is named by the directory that holds its manifest (or by the manifest itself), or as `JOB` for the job's
newest checkpoint, or `JOB/12` for that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from strobe.model.errors import Damaged, Misuse
from strobe.model.ids import SnapshotId, check_uid
from strobe.store.check import read_manifest
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JOBS, MANIFEST, JobLayout, SavepointLayout, SnapshotLayout
from strobe.store.manifest import Manifest
from strobe.store.snapshots import SnapshotStore

__all__ = ["Located", "jobs_in", "locate"]


@dataclass(frozen=True)
class Located:
    store: SnapshotStore
    snapshot: SnapshotId
    where: Path

    def load(self) -> Manifest:
        return self.store.load(self.snapshot)


def jobs_in(home: Path) -> tuple[str, ...]:
    """The jobs that have ever run in this home."""
    root = home / JOBS
    return tuple(sorted(p.name for p in root.iterdir() if p.is_dir() and _legal(p.name))) if root.is_dir() else ()


def locate(name: str, home: Path) -> Located:
    path = Path(name)
    if path.name == MANIFEST:
        path = path.parent
    if (path / MANIFEST).is_file():
        return _at(path)
    if path.exists() and not (home / JOBS / name).is_dir():
        raise Misuse(
            f"{name} is not a snapshot: it holds no {MANIFEST}.",
            untouched="Nothing was changed.",
            next="Name a snapshot's directory, or JOB, or JOB/ID.",
        )
    job, _, number = name.partition("/")
    if job not in jobs_in(home) or (number and not number.isdigit()):
        known = ", ".join(jobs_in(home)) or "none"
        raise Misuse(
            f"There is no snapshot {name!r}: neither a directory with a {MANIFEST}, nor a job in {home}.",
            untouched="Nothing was changed.",
            next=f"The jobs there: {known}. Name a snapshot's directory, or JOB, or JOB/ID.",
        )
    layout = JobLayout(check_uid(job, "job"))
    store = SnapshotStore(FilesystemStore(home), layout, job)
    there = store.list()
    wanted = SnapshotId(int(number)) if number else (there[-1] if there else None)
    if wanted is None or wanted not in there:
        held = ", ".join(map(str, there)) or "none"
        raise Misuse(
            f"Job {job!r} has no {'checkpoint ' + number if number else 'complete checkpoint'}.",
            untouched="Nothing was changed.",
            next=f"Its checkpoints: {held}.",
        )
    return Located(store, wanted, home / layout.directory(wanted))


def _legal(name: str) -> bool:
    """Whether a directory can be a job's: people keep other things beside."""
    try:
        check_uid(name)
    except Misuse:
        return False
    return True


def _at(path: Path) -> Located:
    absolute = path.absolute()
    manifest = read_manifest(FilesystemStore(absolute), MANIFEST)
    layout: SnapshotLayout
    home = absolute.parents[3] if len(absolute.parents) > 3 else absolute
    job_layout = JobLayout(manifest.job)
    if absolute == home / job_layout.directory(manifest.snapshot).rstrip("/"):
        layout, root = job_layout, home
    elif (absolute / "blobs").is_dir() or not any(manifest.blobs()):
        layout, root = SavepointLayout("", manifest.snapshot), absolute
    else:
        raise Damaged(
            f"{path} holds the manifest of snapshot {manifest.snapshot} of job {manifest.job!r}, but its blobs are not "
            "with it: a checkpoint cannot be moved away from its job.",
            untouched="Nothing was changed.",
            next="Name it where it was made; a savepoint can be moved.",
        )
    return Located(SnapshotStore(FilesystemStore(root), layout, manifest.job), manifest.snapshot, absolute)

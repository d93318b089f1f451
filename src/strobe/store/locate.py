"""From what a person types to a snapshot.

A snapshot is named by the directory that holds its manifest (or by the manifest itself), or as `JOB` for the job's
newest checkpoint, or `JOB/12` for that one. In a bucket it is the same, with an address in front: the snapshot's
directory (`s3://bucket/prefix/jobs/ledger/snapshots/chk-000012`, or where a savepoint was put), or the job's
(`s3://bucket/prefix/jobs/ledger`) for its newest checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from strobe.model.errors import Damaged, Misuse
from strobe.model.ids import SnapshotId, check_uid
from strobe.model.suggest import did_you_mean
from strobe.store.base import Absent
from strobe.store.check import read_manifest
from strobe.store.codec import root_of
from strobe.store.fencing import current_layout
from strobe.store.filesystem import FilesystemStore
from strobe.store.jobs import is_job_name, jobs_in
from strobe.store.layout import JOBS, MANIFEST, JobLayout, SavepointLayout, SnapshotLayout, parse_snapshot_name
from strobe.store.manifest import Manifest
from strobe.store.places import checkpoints_of, open_objects, place_of
from strobe.store.scheme import is_s3
from strobe.store.signing import check_signature
from strobe.store.snapshots import SnapshotStore

__all__ = ["Located", "in_job", "job_at", "jobs_in", "locate"]


@dataclass(frozen=True)
class Located:
    """`where` it is, in words: a path or an address. `home`: of a checkpoint, the home of its job, where its channels
    are, as far as that is known; None for what stands alone. `root`: of one that was checked, by its root or its
    signature; whoever can write there could put another manifest in its place before it is read again."""

    store: SnapshotStore
    snapshot: SnapshotId
    where: str
    home: Path | None = None
    root: str | None = None

    def load(self) -> Manifest:
        manifest = self.store.load(self.snapshot)
        if self.root is not None and root_of(manifest) != self.root:
            raise Damaged(
                f"{self.where} was replaced after it was checked: its root is {root_of(manifest)}, not {self.root}.",
                untouched="Nothing of it was used.",
                next="Find out who writes there; restore a copy of it that nobody else can change.",
            )
        return manifest


def locate(name: str, home: Path, root: str | None = None, signed_by: str | None = None) -> Located:
    """The snapshot of this name. `root` is what the caller knows its Merkle root to be, `signed_by` names the key that
    it must be signed by: anything else is `Damaged`."""
    if not isinstance(name, str):
        raise Misuse(f"{name!r} is not the name of a snapshot.", next="Name a directory, JOB, or JOB/ID, as a text.")
    found = _locate(name, home)
    if root is None and signed_by is None:
        return found
    actual = root_of(found.load())
    if signed_by is not None:
        key = found.store.layout.signature(found.snapshot)
        check_signature(found.store.objects, key, actual, found.where, signed_by)
    if root is not None and actual != root.lower():
        raise Damaged(
            f"{found.where} is not the snapshot that was meant: its root is {actual}, not {root.lower()}.",
            untouched="Nothing was changed.",
            next="Name the one whose root you noted, and find out who replaced this one.",
        )
    return replace(found, root=actual)


def _locate(name: str, home: Path) -> Located:
    if is_s3(name):
        return _in_bucket(name.rstrip("/").removesuffix(f"/{MANIFEST}"), home)
    path = Path(name)
    if path.name == MANIFEST:
        path = path.parent
    if (path / MANIFEST).is_file():
        return _at(path, home)
    if path.exists() and name.partition("/")[0] not in jobs_in(home):
        raise Misuse(
            f"{name} is not a snapshot: it holds no {MANIFEST}.",
            untouched="Nothing was changed.",
            next="Name a snapshot's directory, or JOB, or JOB/ID.",
        )
    job, _, number = name.partition("/")
    if job not in jobs_in(home) or (number and not number.isdecimal()):
        known = ", ".join(jobs_in(home)) or "none"
        raise Misuse(
            f"There is no snapshot {name!r}: neither a directory with a {MANIFEST}, nor a job in {home}.",
            untouched="Nothing was changed.",
            next=f"{did_you_mean(job, jobs_in(home))}The jobs there: {known}. Name a snapshot's directory, or JOB, or "
            "JOB/ID.",
        )
    return _of_job(checkpoints_of(home, check_uid(job, "job")), number, home)


def _of_job(store: SnapshotStore, number: str, home: Path | None) -> Located:
    job, there = store.job, store.list()
    wanted = SnapshotId(int(number)) if number else (there[-1] if there else None)
    if wanted is None or wanted not in there:
        held = ", ".join(map(str, there)) or "none"
        raise Misuse(
            f"Job {job!r} has no {'checkpoint ' + number if number else 'complete checkpoint'}.",
            untouched="Nothing was changed.",
            next=f"Its checkpoints: {held}.",
        )
    return in_job(store, wanted, home)


def in_job(store: SnapshotStore, snapshot: SnapshotId, home: Path | None) -> Located:
    return Located(store, snapshot, store.objects.describe(store.layout.directory(snapshot).rstrip("/")), home)


def job_at(name: str, home: Path) -> tuple[SnapshotStore, SnapshotId, Path | None] | None:
    """Whose checkpoint would be at `name`, were there one: `JOB/12`, or a path or address of that shape. None if it is
    of no such shape."""
    job, _, number = name.partition("/")
    if number.isdecimal() and job in jobs_in(home):
        return checkpoints_of(home, job), SnapshotId(int(number)), home
    place = name.rstrip("/").removesuffix(f"/{MANIFEST}")
    above, _, rest = (place if is_s3(place) else str(Path(place).absolute())).rpartition(f"/{JOBS}/")
    parts = rest.split("/")
    snapshot = parse_snapshot_name(parts[-1])
    epoch = len(parts) == 4 and parts[1].startswith("epoch-")  # whichever was current when the name was noted
    if len(parts) != 3 + epoch or parts[-2] != "snapshots" or snapshot is None or not is_job_name(parts[0]):
        return None
    return _checkpoints(above, parts[0]), snapshot, _home_of(parts[0], above, home)


def _checkpoints(place: str, job: str) -> SnapshotStore:
    objects = open_objects(place)
    return SnapshotStore(objects, current_layout(objects, job), job)


def _home_of(job: str, place: str, home: Path) -> Path | None:
    """The home of the job whose checkpoints are at `place`: that place itself, or `home` if it says so."""
    if not is_s3(place) and (Path(place) / JobLayout(job).incarnation).is_file():
        return Path(place)
    return home if job in jobs_in(home) and place_of(home, job) == place else None


def _in_bucket(url: str, home: Path) -> Located:
    above, _, job = url.rpartition(f"/{JOBS}/")
    if above.count("/") >= 2 and is_job_name(job):
        return _of_job(_checkpoints(above, job), "", _home_of(job, above, home))
    found = job_at(url, home)
    if found is not None:
        return _of_job(found[0], str(found[1]), found[2])
    objects = open_objects(url)
    try:
        manifest = read_manifest(objects, MANIFEST)
    except Absent:
        raise Misuse(
            f"{url} is not a snapshot: it holds no {MANIFEST}.",
            untouched="Nothing was changed.",
            next="Name the snapshot's place, or that of its job: s3://bucket/prefix/jobs/JOB.",
        ) from None
    return Located(SnapshotStore(objects, SavepointLayout("", manifest.snapshot), manifest.job), manifest.snapshot, url)


def _at(path: Path, given: Path) -> Located:
    absolute = path.absolute()
    try:
        manifest = read_manifest(FilesystemStore(absolute), MANIFEST)
    except Damaged:
        place = job_at(str(absolute), given)
        if place is None:
            raise
        return in_job(*place)  # in its own place: its number is known, and what is wrong with it is for others to say
    layout: SnapshotLayout
    home = absolute.parents[3] if len(absolute.parents) > 3 else absolute
    job_layout = JobLayout(manifest.job)
    if absolute == home / job_layout.directory(manifest.snapshot).rstrip("/"):
        layout, root = job_layout, home
        owner = _home_of(manifest.job, str(home), given)
    elif (absolute / "blobs").is_dir() or not any(manifest.blobs()):
        layout, root, owner = SavepointLayout("", manifest.snapshot), absolute, None
    else:
        raise Damaged(
            f"{path} holds the manifest of snapshot {manifest.snapshot} of job {manifest.job!r}, but its blobs are not "
            "with it: a checkpoint cannot be moved away from its job.",
            untouched="Nothing was changed.",
            next="Name it where it was made; a savepoint can be moved.",
        )
    return Located(SnapshotStore(FilesystemStore(root), layout, manifest.job), manifest.snapshot, str(absolute), owner)

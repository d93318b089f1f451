"""Where everything of a job lives. This module alone knows the paths; it never touches one.

A path here is a *key*: a plain relative path with forward slashes, below the home directory or below the root of an
object store. Snapshots and blobs may live in any store; stages, channels, logs and locks are below the home directory.

```
jobs/<job>/
  lock  incarnation.json  runtime.json  token        who runs the job now, and how to reach it
  driver-<incarnation>                               from where that driver writes these; without it, it cannot
  writer-<incarnation>                               the same, where the checkpoints are: every file passes through it
  identity                                           what tells it from a job of the same name in another home
  store.json  owner.json                             where the checkpoints are, if elsewhere; and there, whose they are
  leases/12-5e1f…                                    who is looking at which snapshot, so that it stays
  history.jsonl                                      every snapshot that was tried, a line each
  verdicts.jsonl                                     what invariants were found to be, snapshot by snapshot
  releases.jsonl                                     what people have released that was held
  logs/driver.log, spark.log
  journal/graph.json, …                              what the nodes of a live system have written of their run
  stages/<uid>/t<timeline>/spark                     the stage's Spark checkpoint on that timeline
  stages/<uid>/t<timeline>.<generation>/spark        the same since that takeover
  stages/<uid>/starts-t<timeline>.json               where the stage begins there, if it has not run yet
  channels/<uid>                                     a Delta table
  sinks/<uid>/<sink>/ledger.json, t<timeline>/…      what a sink has prepared, and staged, before it is visible
  snapshots/chk-000012/manifest.json                 checkpoints, which share
  blobs/ab/abcdef…                                   the contents of their files, by SHA-256
  epochs/00000003.json, epoch-3/snapshots, …/blobs   in a bucket, where they are since the third takeover
  savepoints/sav-000013/manifest.json, blobs/…       savepoints, each with its own blobs
```

Uids and job names pass `check_uid`, which leaves no way to climb out of the tree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Protocol

from strobe.model.ids import NodeId, SnapshotId, Timeline, check_uid

__all__ = [
    "BUCKET_SAVEPOINT_MARKER", "MANIFEST", "SAVEPOINT_MARKER", "SIGNATURE", "JobLayout", "SavepointLayout",
    "SnapshotLayout", "blob_path", "parse_snapshot_name", "snapshot_name",
]  # fmt: skip

JOBS: Final = "jobs"
MANIFEST: Final = "manifest.json"
SIGNATURE: Final = "signature.json"
# Beside a savepoint while it is being written, in a directory and in a bucket, whose keys have no part that begins with
# a dot.
SAVEPOINT_MARKER: Final = ".savepoint-under-way"
BUCKET_SAVEPOINT_MARKER: Final = "savepoint-under-way.json"
_CHECKPOINT: Final = "chk-"
_SAVEPOINT: Final = "sav-"
_NAME = re.compile(r"(?:chk|sav)-([0-9]{6,})")
_WRITER = re.compile(r"writer-([1-9][0-9]*)")
_EPOCH = re.compile(r"([0-9]{8,})\.json")
_EPOCH_PREFIX = re.compile(r"epoch-([1-9][0-9]*)/")
_DRIVER = re.compile(r"driver-([1-9][0-9]*)")
_LINE = re.compile(r"t([0-9]+)(?:\.([1-9][0-9]*))?")
_STARTS = re.compile(r"starts-t([0-9]+)\.json")


def snapshot_name(snapshot: SnapshotId, *, savepoint: bool = False) -> str:
    """`chk-000012` or `sav-000012`: sorts by age up to a million."""
    return f"{_SAVEPOINT if savepoint else _CHECKPOINT}{snapshot:06d}"


def parse_snapshot_name(name: str) -> SnapshotId | None:
    """The number in a snapshot's name, or None if it is not such a name."""
    match = _NAME.fullmatch(name)
    if match is None or int(match[1]) == 0 or name[4:] != f"{int(match[1]):06d}":
        return None
    return SnapshotId(int(match[1]))


def blob_path(sha256: str) -> str:
    """Below a directory of blobs; 256 directories keep each one short."""
    return f"{sha256[:2]}/{sha256}"


class SnapshotLayout(Protocol):
    """What a store of snapshots asks of a layout."""

    @property
    def manifests(self) -> str:
        """The prefix below which all manifests are."""
        ...

    @property
    def blobs(self) -> str:
        """The prefix below which all blobs are, and nothing else."""
        ...

    def directory(self, snapshot: SnapshotId) -> str:
        """The prefix below which everything is that belongs to this one snapshot."""
        ...

    def manifest(self, snapshot: SnapshotId) -> str: ...

    def signature(self, snapshot: SnapshotId) -> str: ...

    def blob(self, sha256: str) -> str: ...

    def snapshot_of(self, key: str) -> SnapshotId | None:
        """The snapshot whose manifest is at `key`, or None if no manifest belongs there."""
        ...

    def sha256_of(self, key: str) -> str | None:
        """The hash of the blob at `key`, or None if no blob belongs there."""
        ...


@dataclass(frozen=True, slots=True)
class _Blobs:
    """Content addresses below `<root>/blobs`."""

    root: str

    @property
    def blobs(self) -> str:
        return _join(self.root, "blobs/")

    def blob(self, sha256: str) -> str:
        return self.blobs + blob_path(sha256)

    def sha256_of(self, key: str) -> str | None:
        sha256 = key.rpartition("/")[2]
        return sha256 if re.fullmatch("[0-9a-f]{64}", sha256) and key == self.blob(sha256) else None


@dataclass(frozen=True, slots=True, init=False)
class JobLayout(_Blobs):
    """All places of one job."""

    job: str
    epoch: int

    def __init__(self, job: str, epoch: int = 0) -> None:
        """`epoch`: since which takeover the checkpoints are written, where an older writer cannot be shut out."""
        object.__setattr__(self, "job", check_uid(job, "job"))
        object.__setattr__(self, "root", f"{JOBS}/{job}")
        object.__setattr__(self, "epoch", epoch)

    # ── checkpoints ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def checkpoints(self) -> str:
        """The prefix of manifests and blobs."""
        return f"{self.root}/epoch-{self.epoch}/" if self.epoch else f"{self.root}/"

    @property
    def manifests(self) -> str:
        return f"{self.checkpoints}snapshots/"

    @property
    def blobs(self) -> str:
        return f"{self.checkpoints}blobs/"

    @property
    def epochs(self) -> str:
        """The prefix of the markers of epochs that have begun."""
        return f"{self.root}/epochs/"

    @property
    def epoch_marker(self) -> str:
        return f"{self.epochs}{self.epoch:08d}.json"

    def epoch_of(self, key: str) -> int | None:
        """The epoch whose marker is at `key`."""
        match = _EPOCH.fullmatch(key.removeprefix(self.epochs))
        return int(match[1]) if match else None

    @property
    def all_epochs(self) -> str:
        """What the prefixes of all epochs but the first begin with."""
        return f"{self.root}/epoch-"

    def epoch_in(self, key: str) -> int | None:
        """The epoch that something belongs to."""
        match = _EPOCH_PREFIX.match(key.removeprefix(f"{self.root}/"))
        return int(match[1]) if match else None

    def writer(self, incarnation: int) -> str:
        """The directory through which the writer with this incarnation makes and removes files, for as long as nobody
        has taken over."""
        return f"{self.root}/writer-{incarnation}"

    @staticmethod
    def writer_of(name: str) -> int | None:
        match = _WRITER.fullmatch(name)
        return int(match[1]) if match else None

    def directory(self, snapshot: SnapshotId) -> str:
        return f"{self.manifests}{snapshot_name(snapshot)}/"

    def manifest(self, snapshot: SnapshotId) -> str:
        return self.directory(snapshot) + MANIFEST

    def signature(self, snapshot: SnapshotId) -> str:
        return self.directory(snapshot) + SIGNATURE

    def snapshot_of(self, key: str) -> SnapshotId | None:
        parts = key.removeprefix(self.manifests).split("/")
        snapshot = parse_snapshot_name(parts[0])
        return snapshot if snapshot is not None and key == self.manifest(snapshot) else None

    # ── savepoints ──────────────────────────────────────────────────────────────────────────────────────────────────

    def savepoint(self, snapshot: SnapshotId) -> str:
        """Where a savepoint goes when no directory was named."""
        return f"{self.root}/savepoints/{snapshot_name(snapshot, savepoint=True)}"

    # ── stages and channels ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def stages(self) -> str:
        return f"{self.root}/stages"

    def stage(self, uid: NodeId) -> str:
        return f"{self.stages}/{check_uid(uid)}"

    def stage_checkpoint(self, uid: NodeId, timeline: Timeline, generation: int = 0) -> str:
        """The stage's Spark checkpoint. Each timeline has its own: a restore never writes into what is there. So has
        each generation: a driver that was given up and wakes again does not either."""
        line = f"t{timeline}" if generation == 0 else f"t{timeline}.{generation}"
        return f"{self.stage(uid)}/{line}/spark"

    @staticmethod
    def line_of(name: str) -> tuple[Timeline, int] | None:
        """The timeline and generation whose directory below a stage has this name; None if it is not such a name."""
        match = _LINE.fullmatch(name)
        return (Timeline(int(match[1])), int(match[2] or 0)) if match else None

    @staticmethod
    def starts_beside(line: str) -> str:
        """The file that says where a stage begins, beside its directory of the name `line`. All generations of a
        timeline share it: a stage that has not begun has no checkpoint to take over."""
        return f"starts-{line.partition('.')[0]}.json"

    @staticmethod
    def starts_of(name: str) -> Timeline | None:
        """The timeline of such a file; None if it does not have such a name."""
        match = _STARTS.fullmatch(name)
        return Timeline(int(match[1])) if match else None

    @property
    def channels(self) -> str:
        return f"{self.root}/channels"

    def channel(self, uid: NodeId) -> str:
        """The Delta table that the stage's output goes to."""
        return f"{self.channels}/{check_uid(uid)}"

    @property
    def sinks(self) -> str:
        return f"{self.root}/sinks"

    def _sink(self, name: str) -> str:
        return f"{self.sinks}/{'/'.join(check_uid(word) for word in name.split('/'))}"

    def staging(self, sink: str, timeline: Timeline) -> str:
        """Where the sink of this name (stage/sink) keeps what is not visible yet. Each timeline has its own."""
        return f"{self._sink(sink)}/{self.staging_name(timeline)}"

    @staticmethod
    def staging_name(timeline: int) -> str:
        """The name of that directory, beside those of the sink's other timelines."""
        return f"t{timeline}"

    def ledger(self, sink: str) -> str:
        """What the sink of this name has prepared, made visible and thrown away."""
        return f"{self._sink(sink)}/ledger.json"

    # ── the running job ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def lock(self) -> str:
        return f"{self.root}/lock"

    @property
    def incarnation(self) -> str:
        return f"{self.root}/incarnation.json"

    def driver(self, incarnation: int) -> str:
        """The directory of the driver with this incarnation, for as long as nobody has taken over."""
        return f"{self.root}/driver-{incarnation}"

    @staticmethod
    def driver_of(name: str) -> int | None:
        """The incarnation whose directory has this name, or None if it is not such a name."""
        match = _DRIVER.fullmatch(name)
        return int(match[1]) if match else None

    @property
    def runtime(self) -> str:
        """Process id, address, start time of the driver that runs now."""
        return f"{self.root}/runtime.json"

    @property
    def supervisor(self) -> str:
        """Who starts the driver again when it dies."""
        return f"{self.root}/supervisor.json"

    @property
    def store(self) -> str:
        """Which store holds the checkpoints."""
        return f"{self.root}/store.json"

    @property
    def owner(self) -> str:
        """In a store outside the home: which home writes there."""
        return f"{self.root}/owner.json"

    @property
    def identity(self) -> str:
        """What tells the job from one of the same name in another home. Moves with the home."""
        return f"{self.root}/identity"

    @property
    def savepoint_under_way(self) -> str:
        """Where the driver is writing a savepoint now: for whoever takes over."""
        return f"{self.root}/savepoint-under-way.json"

    @property
    def leases(self) -> str:
        """Who is looking at which snapshot."""
        return f"{self.root}/leases"

    @property
    def verdicts(self) -> str:
        """What invariants were found to be."""
        return f"{self.root}/verdicts.jsonl"

    @property
    def releases(self) -> str:
        """What people have released that was held."""
        return f"{self.root}/releases.jsonl"

    @property
    def token(self) -> str:
        return f"{self.root}/token"

    @property
    def history(self) -> str:
        """What became of every snapshot that was tried."""
        return f"{self.root}/history.jsonl"

    @property
    def logs(self) -> str:
        return f"{self.root}/logs"

    @property
    def driver_log(self) -> str:
        return f"{self.logs}/driver.log"

    @property
    def spark_log(self) -> str:
        """What Spark's JVM has written."""
        return f"{self.logs}/spark.log"

    @property
    def journal(self) -> str:
        """What the nodes of a live system write of their run, and the graph that it is of."""
        return f"{self.root}/journal"


@dataclass(frozen=True, slots=True)
class SavepointLayout(_Blobs):
    """One self-contained snapshot below `root` (empty: the store's own root), wherever that has been moved to."""

    snapshot: SnapshotId

    @property
    def manifests(self) -> str:
        return _join(self.root, MANIFEST)

    def directory(self, snapshot: SnapshotId) -> str:
        return _join(self.root, "")

    def manifest(self, snapshot: SnapshotId) -> str:
        return self.manifests

    def signature(self, snapshot: SnapshotId) -> str:
        return _join(self.root, SIGNATURE)

    def snapshot_of(self, key: str) -> SnapshotId | None:
        return self.snapshot if key == self.manifests else None


def _join(root: str, rest: str) -> str:
    return f"{root}/{rest}" if root else rest

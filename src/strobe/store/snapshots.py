"""A job's snapshots: how they come, are found again, and go.

Theory
------
A snapshot comes through a `Session`, which writes its manifest last. It goes in reverse: the manifest first, durably,
then the blobs that nothing else needs. A crash in between leaves blobs that no manifest names; `sweep` removes them at
the next start. A session that fails or is given up takes its own blobs away, so a full disk gets its room back.

Which blobs are needed is read from the manifests, and from all of them: if one cannot be read, no blob is deleted until
that snapshot is disposed of. Earlier snapshots are never written to.

One process at a time may write (the job's lock sees to that, and `guard` is asked before anything is completed or
deleted); any number may read.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path

from strobe.model.errors import Damaged, Failed, HostFault, Misuse, StrobeError
from strobe.model.ids import SnapshotId, Timeline
from strobe.store.base import Absent, ObjectStore
from strobe.store.check import Problem, owner, read_blob, read_manifest, verify_snapshot
from strobe.store.filesystem import FilesystemStore
from strobe.store.hashes import HashCache
from strobe.store.layout import MANIFEST, SIGNATURE, SnapshotLayout
from strobe.store.manifest import BlobRef, Manifest
from strobe.store.points import OnPoint, no_point
from strobe.store.references import References
from strobe.store.session import Session, Stored, Upload, Workplace
from strobe.store.signing import Sign

__all__ = ["Session", "SnapshotStore", "Stored", "Upload"]

_log = logging.getLogger("strobe.store")


class SnapshotStore:
    def __init__(
        self,
        objects: ObjectStore,
        layout: SnapshotLayout,
        job: str,
        *,
        guard: Callable[[], None] = lambda: None,
        on_point: OnPoint = no_point,
        sign: Sign | None = None,
    ) -> None:
        self.objects = objects
        self.layout = layout
        self.job = job
        self.sign = sign
        self._place = Workplace(objects, layout, job, References(), HashCache(), on_point, guard, sign)
        self._sessions: dict[SnapshotId, Session] = {}
        self._lock = threading.Lock()  # over the sessions
        self._going = threading.RLock()  # one deletion at a time; uploads go on meanwhile
        self._learned = False

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def list(self) -> tuple[SnapshotId, ...]:
        """The complete snapshots, oldest first. Whether they are sound is for `load` and `verify` to say."""
        found = (self.layout.snapshot_of(key) for key in self.objects.list(self.layout.manifests))
        return tuple(sorted(snapshot for snapshot in found if snapshot is not None))

    def load(self, snapshot: SnapshotId) -> Manifest:
        try:
            return read_manifest(self.objects, self.layout.manifest(snapshot), snapshot, self.job)
        except Absent:
            raise self._unknown(snapshot) from None

    def latest(self, timeline: Timeline | None = None) -> Manifest | None:
        """The newest snapshot (on that line of history), or None. A damaged one is not passed over in silence."""
        for snapshot in reversed(self.list()):
            manifest = self.load(snapshot)
            if timeline is None or manifest.timeline == timeline:
                return manifest
        return None

    def read(self, ref: BlobRef, what: str = "") -> bytes:
        """A blob's bytes, checked. `what` names them if they are damaged."""
        chunks: list[bytes] = []
        read_blob(self.objects, self.layout.blob(ref.sha256), ref, what or f"Blob {ref.sha256}", chunks.append)
        return b"".join(chunks)

    def lay_out(self, manifest: Manifest, files: str, directory: Path) -> int:
        """Writes the snapshot's files whose path begins with `files` (such as `nodes/balances/files/`) below
        `directory`, checked. Returns how many bytes. Not durable: the caller syncs what it keeps."""
        total = 0
        for path, ref in manifest.blobs():
            if path.startswith(files):
                target = directory / path.removeprefix(files)
                try:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with target.open("wb") as file:
                        key = self.layout.blob(ref.sha256)
                        read_blob(self.objects, key, ref, owner(manifest, path), file.write)
                except OSError as error:
                    raise Failed(
                        f"{owner(manifest, path)} could not be written to {target}: {error.strerror}.",
                        untouched="The snapshot is untouched.",
                        next="Make room there, or choose another place.",
                    ) from error
                total += ref.size
        return total

    def verify(self, snapshot: SnapshotId, root: str | None = None) -> tuple[Problem, ...]:
        """Everything that is wrong with the snapshot's bytes; nothing if it is sound. Every byte is read.

        `root` is what the caller knows the Merkle root to be.
        """
        if self.objects.size(self.layout.manifest(snapshot)) is None:
            raise self._unknown(snapshot)
        return tuple(verify_snapshot(self.objects, self.layout, snapshot, self.job, root))

    # ── coming ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, snapshot: SnapshotId) -> Session:
        """A session that builds this snapshot. It ends by `complete` or `abort`."""
        self._learn_first()
        with self._lock:
            if snapshot in self._sessions:
                raise HostFault(f"Snapshot {snapshot} of job {self.job} has begun already.")
            session = Session(self._place, snapshot, lambda blobs: self._ended(snapshot, blobs))
            self._sessions[snapshot] = session
            return session

    def session(self, snapshot: SnapshotId) -> Session:
        """The session that `begin` opened, for those who upload into it; `Failed` if it is over."""
        with self._lock:
            if snapshot not in self._sessions:
                raise Failed(
                    f"Snapshot {snapshot} of job {self.job} is over, or has not begun.", untouched="Nothing was stored."
                )
            return self._sessions[snapshot]

    # ── going ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def dispose(self, snapshot: SnapshotId) -> None:
        """The snapshot goes, and with it the blobs that nothing else needs. Disposing of a damaged one works too."""
        place = self._place
        with self._going:
            key = self.layout.manifest(snapshot)
            if self.objects.size(key) is None:
                raise self._unknown(snapshot)
            place.guard()
            self._learn()
            place.on_point("store.dispose.before")
            self.objects.delete(key)
            place.on_point("store.dispose.manifest")
            self._drop_signature(snapshot)
            self._collect(place.references.forget(snapshot))
            place.on_point("store.dispose.after")

    def retire(
        self,
        keep: int,
        protect: Iterable[SnapshotId] = (),
        *,
        spare: Iterable[SnapshotId] = (),
        older_than: datetime | None = None,
    ) -> tuple[SnapshotId, ...]:
        """Disposes of all but those that are protected, the newest `keep` of the others and, with `older_than`, those
        that were completed since. Those to `spare` are counted, but not disposed of by this call. Returns which, oldest
        first. A crash in between leaves the rest to the next call."""
        if keep < 1:
            raise Misuse(f"{keep} snapshots cannot be retained.", next="Retain one or more.")
        protected = set(protect)
        with self._going:
            counted = [snapshot for snapshot in self.list() if snapshot not in protected]
            old = [s for s in counted[:-keep] if s not in set(spare)]
            retired = tuple(s for s in old if older_than is None or self._completed_before(s, older_than))
            for snapshot in retired:
                self.dispose(snapshot)
        return retired

    def sweep(self) -> int:
        """Removes what crashes have left: unfinished writes, and blobs that no manifest names and no session has
        pinned. Returns how many blobs. What is complete is durable then, whenever its writer died. For the job's one
        writer, at its start."""
        with self._going:
            self._place.guard()
            self.objects.clean()
            # From here on they count: sinks commit what they name, and older ones go.
            self.objects.confirm(self.layout.manifest(snapshot) for snapshot in self.list())
            self._sweep_signatures()
            found = (self.layout.sha256_of(key) for key in self.objects.list(self.layout.blobs))
            return self._collect(sha256 for sha256 in found if sha256 is not None)

    def _sweep_signatures(self) -> None:
        """Those of snapshots that never became complete, or are gone."""
        with self._lock:
            running = set(self._sessions)
        keys = set(self.objects.list(self.layout.manifests))
        for key in keys:
            above, _, name = key.rpartition("/")
            snapshot = self.layout.snapshot_of(f"{above}/{MANIFEST}")
            if name == SIGNATURE and snapshot not in running and f"{above}/{MANIFEST}" not in keys:
                self.objects.delete(key)

    def close(self) -> None:
        """The job has ended in order: nothing of its writer stays behind. Snapshots can still be read."""
        if isinstance(self.objects, FilesystemStore):
            self.objects.close()

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _drop_signature(self, snapshot: SnapshotId) -> None:
        signature = self.layout.signature(snapshot)
        if self.objects.size(signature) is not None:
            self.objects.delete(signature)

    def _unknown(self, snapshot: SnapshotId) -> Misuse:
        there = ", ".join(map(str, self.list())) or "none"
        return Misuse(
            f"Job {self.job} has no snapshot {snapshot}.",
            untouched="Nothing was changed.",
            next=f"Its snapshots: {there}.",
        )

    def _completed_before(self, snapshot: SnapshotId, when: datetime) -> bool:
        """A damaged one has no age and nobody can restore it: it goes by number alone. One that cannot be read for
        another reason stays for now."""
        try:
            return datetime.fromisoformat(self.load(snapshot).completed) < when
        except Damaged:
            return True
        except StrobeError:
            return False

    def _ended(self, snapshot: SnapshotId, blobs: Iterable[str]) -> None:
        with self._lock:
            self._sessions.pop(snapshot, None)
        free = self._place.references.free(blobs)
        if not free:
            return  # as a rule, after a completed session: it does not wait for a deletion either
        try:
            with self._going:
                self._collect(free)
        except StrobeError as error:
            # Whether the snapshot exists is decided by now; what could not be removed is left to the next sweep.
            _log.warning("Snapshot %s of job %s: leftovers stay for now. %s", snapshot, self.job, error)

    def _learn_first(self) -> None:
        if not self._learned:  # asked without the lock first: who begins must not wait for a deletion
            with self._going:
                self._learn()

    def _learn(self) -> None:
        """Reads the manifests that are not known yet. One that was read is not read again: it never changes."""
        references = self._place.references
        there = self.list()
        for snapshot in references.unreadable() - set(there):
            references.forget(snapshot)
        for snapshot in there:
            if snapshot not in references:
                try:
                    manifest = read_manifest(self.objects, self.layout.manifest(snapshot), snapshot, self.job)
                except StrobeError as error:
                    if snapshot not in references.unreadable():
                        _log.warning("No blob of job %s will be deleted: %s", self.job, error)
                    references.name_unknown(snapshot)
                else:
                    references.name(snapshot, (ref.sha256 for _, ref in manifest.blobs()))
        self._learned = True

    def _collect(self, blobs: Iterable[str]) -> int:
        """Deletes those of `blobs` that nobody needs."""
        place = self._place
        self._learn()
        doomed = place.references.doom(blobs)
        try:
            if doomed:
                place.guard()
                place.on_point("store.blobs.doomed")
                self.objects.discard(self.layout.blob(sha256) for sha256 in doomed)
        finally:
            place.references.gone(doomed)
        return len(doomed)

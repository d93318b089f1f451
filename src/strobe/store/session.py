"""One snapshot in the making: its blobs first, each durable and pinned, then its manifest.

Theory
------
Blobs are stored under the hash of their bytes; one that is there already is not stored again. Every blob of the session
is pinned before the store is asked whether it is there, so nobody deletes it in between. `complete` checks that all
blobs are durable and writes the manifest: atomically, last, and only if none is there. Before that moment the
snapshot does not exist, whatever happens; after it, it does. There is no state in between to be repaired.

A session ends once: completed, failed or aborted. Then its pins are let go, and what nobody needs is deleted; if
uploads are still running, by the last of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from strobe.model.errors import Failed, Fenced, HostFault
from strobe.model.ids import SnapshotId
from strobe.store.base import Absent, AlreadyThere, Batch, Data, ObjectStore, has_content
from strobe.store.check import owner
from strobe.store.codec import encode, root_of
from strobe.store.hashes import HashCache, Stamp, stamp
from strobe.store.layout import SnapshotLayout
from strobe.store.manifest import BlobRef, Manifest
from strobe.store.points import OnPoint
from strobe.store.references import References
from strobe.store.signing import Sign

__all__ = ["Session", "Stored", "Upload", "Workplace"]


@dataclass(frozen=True, slots=True)
class Stored:
    """A blob, and whether this put was the one that brought it."""

    ref: BlobRef
    new: bool


@dataclass(frozen=True, slots=True)
class Upload:
    """The blobs of some files. Each content is counted once."""

    files: Mapping[str, BlobRef]
    bytes_new: int
    bytes_total: int


@dataclass(frozen=True, slots=True)
class Workplace:
    """What the sessions of one job share. `guard` raises if this process may no longer write the job's snapshots."""

    objects: ObjectStore
    layout: SnapshotLayout
    job: str
    references: References
    hashes: HashCache
    on_point: OnPoint
    guard: Callable[[], None]
    sign: Sign | None = None


class Session:
    """Several threads may upload at once. As a context manager it is aborted unless it was completed."""

    def __init__(self, place: Workplace, snapshot: SnapshotId, at_end: Callable[[Iterable[str]], object]) -> None:
        """`at_end` is called once, with the blobs that were pinned and may now be nobody's."""
        self.snapshot = snapshot
        self._place = place
        self._at_end = at_end
        self._lock = threading.Lock()
        self._pinned: set[str] = set()
        self._uploads = 0
        self._over = False
        self._unknown = False  # whether the snapshot is complete

    def put_blob(self, data: Data) -> Stored:
        upload = self.put_files({"": data})
        return Stored(upload.files[""], new=upload.bytes_new > 0)

    def put_files(self, files: Mapping[str, Data]) -> Upload:
        """Stores the contents; they are durable when this returns. Files that are known and unchanged are not read.

        A file must not change meanwhile. If it does, or cannot be read, or there is no room, this raises, and the
        session should be aborted.
        """
        with self._lock:
            self._check_open()
            self._uploads += 1
        try:
            return self._put_files(files)
        finally:
            with self._lock:
                self._uploads -= 1
                last = self._over and not self._uploads
            if last:
                self._let_go()

    def complete(self, manifest: Manifest) -> str:
        """Makes the snapshot exist, and returns its manifest's key. If this raises, it does not exist."""
        place = self._place
        if manifest.snapshot != self.snapshot or manifest.job != place.job:
            raise HostFault(
                f"The manifest of snapshot {manifest.snapshot} of job {manifest.job} came to the session of snapshot "
                f"{self.snapshot} of job {place.job}."
            )
        data = encode(manifest)
        with self._lock:
            self._check_open()
            if self._uploads:
                raise HostFault(f"Snapshot {self.snapshot} cannot be completed while files are still being uploaded.")
            self._over = True
        try:
            self._check_blobs(manifest)
            place.guard()
            place.on_point("store.manifest.before")
            # Named before it is visible: once it is, somebody may dispose of it, and what is forgotten must stay so.
            place.references.name(self.snapshot, (ref.sha256 for _, ref in manifest.blobs()))
            try:
                if place.sign is not None:
                    place.objects.put(place.layout.signature(self.snapshot), place.sign(root_of(manifest)))
                key = self._put_manifest(data)
            except BaseException:
                place.references.forget(self.snapshot)
                raise
            place.on_point("store.manifest.after")
            return key
        finally:
            self._let_go()

    def abort(self) -> None:
        """The snapshot is given up: what only it had stored goes. Aborting twice, or after the end, does nothing."""
        with self._lock:
            if self._over:
                return
            self._over = True
            if self._uploads:
                return  # the last upload lets go
        self._let_go()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.abort()

    # ── blobs ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _put_files(self, files: Mapping[str, Data]) -> Upload:
        place = self._place
        refs: dict[str, BlobRef] = {}
        new: dict[str, int] = {}
        copied: list[tuple[Path, Stamp, BlobRef]] = []
        unchanged = self._unchanged(files)
        with place.objects.batch() as batch:
            for name, data in files.items():
                before = _stamp(data)
                ref = unchanged.get((name, before))
                if ref is None:
                    ref, is_new = self._put(batch, data)
                    if is_new:
                        new[ref.sha256] = ref.size
                    if isinstance(data, Path) and before is not None:
                        self._check_unchanged(data, before)
                        copied.append((data, before, ref))
                    place.on_point("store.blob.written")
                refs[name] = ref
        place.on_point("store.upload.durable")
        distinct = {ref.sha256: ref.size for ref in refs.values()}
        place.references.made_durable(distinct)
        for path, when, ref in copied:
            place.hashes.add(path, when, ref)
        return Upload(refs, sum(new.values()), sum(distinct.values()))

    def _unchanged(self, files: Mapping[str, Data]) -> dict[tuple[str, Stamp | None], BlobRef]:
        """The blobs of those files that were stored before and have not changed, if still there and durable."""
        known: dict[tuple[str, Stamp | None], BlobRef] = {}
        for name, data in files.items():
            now = _stamp(data)
            if isinstance(data, Path) and now is not None:
                ref = self._place.hashes.get(data, now)
                if ref is not None:
                    known[name, now] = ref
        there = self._pin_durable(known.values())
        return {which: ref for which, ref in known.items() if ref in there}

    def _put(self, batch: Batch, data: Data) -> tuple[BlobRef, bool]:
        try:
            written = batch.put_content(data, self._key_for)
        except Absent as error:
            raise Failed(
                f"{data!s} was gone before snapshot {self.snapshot} could copy it.",
                untouched="Earlier snapshots are untouched.",
                next="Nobody but the job itself may write there.",
            ) from error
        return BlobRef(written.sha256, written.size), written.new

    def _check_unchanged(self, path: Path, before: Stamp) -> None:
        if _stamp(path) != before:
            raise Failed(
                f"{path} changed while snapshot {self.snapshot} was copying it.",
                untouched="Earlier snapshots are untouched.",
                next="Nobody but the job itself may write there.",
            )

    def _key_for(self, sha256: str) -> str:
        self._pin(sha256)
        return self._place.layout.blob(sha256)

    def _pin(self, sha256: str) -> None:
        # Under the lock, waiting included: when a second thread finds the blob pinned, it must be.
        with self._lock:
            if sha256 not in self._pinned:
                self._place.references.pin(sha256)
                self._pinned.add(sha256)

    def _pin_durable(self, refs: Iterable[BlobRef]) -> set[BlobRef]:
        """Those of the blobs that are there for good. All are pinned before we look."""
        place = self._place
        wanted = set(refs)
        for ref in wanted:
            self._pin(ref.sha256)
        durable = {place.layout.blob(ref.sha256): ref for ref in wanted if place.references.is_durable(ref.sha256)}
        sizes = place.objects.sizes(durable)
        return {ref for key, ref in durable.items() if sizes.get(key) == ref.size}

    # ── the manifest ────────────────────────────────────────────────────────────────────────────────────────────────

    def _check_blobs(self, manifest: Manifest) -> None:
        there = self._pin_durable(ref for _, ref in manifest.blobs())
        for path, ref in manifest.blobs():
            if ref in there and self._place.references.is_seen(ref.sha256):
                continue
            if ref in there and self._compare(ref):
                continue
            key = self._place.layout.blob(ref.sha256)
            raise Failed(
                f"Snapshot {self.snapshot} cannot be completed: {owner(manifest, path)} is not durable in the store, "
                f"as {self._place.objects.describe(key)} with {ref.size:,} bytes.",
                untouched="The snapshot does not exist; earlier ones are untouched.",
                next="Take another snapshot.",
            )

    def _compare(self, ref: BlobRef) -> bool:
        """One that this process has neither put nor compared yet may be damaged."""
        place = self._place
        if not has_content(place.objects.open_read(place.layout.blob(ref.sha256)), ref.sha256):
            return False
        place.references.made_durable([ref.sha256])
        return True

    def _put_manifest(self, data: bytes) -> str:
        objects, key = self._place.objects, self._place.layout.manifest(self.snapshot)
        try:
            objects.put(key, data, if_absent=True)
        except AlreadyThere:
            raise Failed(
                f"Snapshot {self.snapshot} of job {self._place.job} is complete already: {objects.describe(key)}.",
                untouched="It was left as it is.",
                next="If another process runs this job, stop one of them.",
            ) from None
        except Fenced:
            raise  # and nothing is visible
        except Failed as error:
            self._take_back(key, error)
            raise
        return key

    def _take_back(self, key: str, error: Failed) -> None:
        """A put that failed may have got as far as being visible, or may get there yet. It must not: the caller will
        call it failed, and its blobs go."""
        objects = self._place.objects
        try:
            objects.withdraw(key)
        except Failed:
            self._unknown = True
            raise Failed(
                f"{error.what} Whether snapshot {self.snapshot} of job {self._place.job} is complete is not known: "
                f"{objects.describe(key)} cannot be taken back.",
                untouched="Earlier snapshots are untouched.",
                next="Repair the store, then start the job again: it goes by what it finds there.",
            ) from error

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _check_open(self) -> None:
        if self._over:
            raise Failed(f"Snapshot {self.snapshot} is over.", untouched="Nothing was stored.")

    def _let_go(self) -> None:
        with self._lock:
            pinned, self._pinned = self._pinned, set()
        self._place.references.unpin(pinned)
        self._at_end(() if self._unknown else pinned)  # it may be complete: then it needs them


def _stamp(data: Data) -> Stamp | None:
    try:
        return stamp(data) if isinstance(data, Path) else None
    except OSError:
        return None  # reading it will say why

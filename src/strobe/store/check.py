"""Reading snapshots with doubt: every byte is hashed again, and what does not fit is named.

`read_manifest` and `read_blob` give back what was written or raise. `verify_snapshot` goes on after the first fault and
returns all of them as sentences. Neither writes anything, so both may be used on a running job's snapshots.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from strobe.model.errors import Damaged, Failed, Misuse, StrobeError
from strobe.model.ids import SnapshotId
from strobe.store.base import CHUNK, Absent, ObjectStore
from strobe.store.codec import decode, root_of
from strobe.store.layout import SnapshotLayout
from strobe.store.manifest import BlobRef, Manifest

__all__ = [
    "LARGEST_MANIFEST", "Fault", "Problem", "check_root", "owner", "read_blob", "read_manifest", "verify_snapshot",
]  # fmt: skip


LARGEST_MANIFEST: Final = 256 << 20  # a file takes about 150 bytes of it; beyond this somebody else wrote it


class Fault(Enum):
    MANIFEST = "manifest"  # it cannot be read, or is not the one that belongs there
    ROOT = "root"  # it is not the root that was asked for
    MISSING = "missing"
    CONTENT = "content"  # the bytes are not those that were written
    EXTRA = "extra"  # something is there that no snapshot knows: no harm


@dataclass(frozen=True, slots=True)
class Problem:
    """`path` says whose file it is, as in `Manifest.blobs`; `message` is a sentence for people."""

    fault: Fault
    path: str
    message: str

    @property
    def harmful(self) -> bool:
        return self.fault is not Fault.EXTRA

    def __str__(self) -> str:
        return self.message


def check_root(root: str, what: str) -> str:
    """A Merkle root as a person gives it, in lower case, or Misuse."""
    if not re.fullmatch("[0-9a-f]{64}", root.lower()):
        raise Misuse(
            f"{what} {root!r} is not a root: a root is 64 hex digits.",
            untouched="Nothing was done.",
            next="`strobe savepoint`, `inspect` and `verify` print it; give all of it.",
        )
    return root.lower()


def owner(manifest: Manifest, path: str) -> str:
    """`nodes/balances/files/state/0/1.delta` in words: `state/0/1.delta of stage balances`."""
    kind, uid, _, rest = path.split("/", 3)
    node = "stage" if manifest.host == "spark" else "node"
    return f"{rest} of {node if kind == 'nodes' else 'channel'} {uid}"


def read_manifest(objects: ObjectStore, key: str, snapshot: SnapshotId | None = None, job: str = "") -> Manifest:
    """The manifest at `key`; `Absent`, `Damaged`, or `Misuse` for a newer format. It must be that of `snapshot` and
    `job` where these are given: a manifest in another's place is damage too."""
    where = objects.describe(key)
    size = objects.size(key)
    if size is not None and size > LARGEST_MANIFEST:
        raise Damaged(
            f"The manifest {where} has {size:,} bytes; no manifest has more than {LARGEST_MANIFEST:,}.",
            untouched="Nothing was changed, and it was not read.",
            next="Restore another snapshot.",
        )
    manifest = decode(objects.get(key), f"The manifest {where}")
    for what, is_, should in (("snapshot", manifest.snapshot, snapshot), ("job", manifest.job, job)):
        if should and is_ != should:
            raise Damaged(
                f"The manifest {where} is that of {what} {is_}, where {what} {should} should be.",
                untouched="Nothing was changed.",
                next="Move it back to where it was.",
            )
    return manifest


def read_blob(objects: ObjectStore, key: str, ref: BlobRef, what: str, sink: Callable[[bytes], object]) -> None:
    """Hands the blob's bytes to `sink`, chunk by chunk, and raises `Damaged` at the end if they were not the right
    ones: `sink` must not make them count before this returns. `what` names them in the message."""
    try:
        sha256, size = _hash(objects, key, ref.size, sink)
    except Absent:
        raise Damaged(
            f"{what} is missing: there is no {objects.describe(key)}.",
            untouched="Nothing was changed.",
            next="Restore another snapshot, or put back a copy of the file.",
        ) from None
    if (sha256, size) != (ref.sha256, ref.size):
        raise Damaged(
            f"{what} is damaged: {_difference(ref, sha256, size)} ({objects.describe(key)}).",
            untouched="Nothing was changed.",
            next="Restore another snapshot, or put back a copy of the file.",
        )


def verify_snapshot(
    objects: ObjectStore, layout: SnapshotLayout, snapshot: SnapshotId, job: str = "", root: str | None = None
) -> list[Problem]:
    """All that is wrong with a snapshot. `root` is what the caller knows its Merkle root to be."""
    key = layout.manifest(snapshot)
    try:
        manifest = read_manifest(objects, key, snapshot, job)
    except Absent:
        return [Problem(Fault.MANIFEST, "manifest.json", f"There is no manifest {objects.describe(key)}.")]
    except StrobeError as error:
        return [Problem(Fault.MANIFEST, "manifest.json", error.what)]
    problems = []
    if root is not None and root != (actual := root_of(manifest)):
        problems.append(
            Problem(Fault.ROOT, "manifest.json", f"The root of snapshot {snapshot} is {actual}, not {root}.")
        )
    verdicts: dict[str, tuple[Fault, str] | None] = {}
    for path, ref in manifest.blobs():
        if ref.sha256 not in verdicts:
            verdicts[ref.sha256] = _verdict(objects, layout.blob(ref.sha256), ref)
        verdict = verdicts[ref.sha256]
        if verdict is not None:
            problems.append(Problem(verdict[0], path, f"{owner(manifest, path)} {verdict[1]}."))
    problems += _extra(objects, layout, snapshot, key)
    return problems


def _verdict(objects: ObjectStore, key: str, ref: BlobRef) -> tuple[Fault, str] | None:
    try:
        sha256, size = _hash(objects, key, ref.size, lambda chunk: None)
    except Absent:
        return Fault.MISSING, f"is missing: there is no {objects.describe(key)}"
    except Failed as error:
        return Fault.CONTENT, f"cannot be read: {error.what.rstrip('.')}"
    if (sha256, size) != (ref.sha256, ref.size):
        return Fault.CONTENT, f"is damaged: {_difference(ref, sha256, size)} ({objects.describe(key)})"
    return None


def _difference(ref: BlobRef, sha256: str, size: int) -> str:
    if size != ref.size:
        return f"it has {size:,} bytes and should have {ref.size:,}"
    return f"its {size:,} bytes hash to {sha256}, not to {ref.sha256}"


def _hash(objects: ObjectStore, key: str, expected: int, sink: Callable[[bytes], object]) -> tuple[str, int]:
    """The hash and the size; of an object of another size than expected nothing is read, however large it is."""
    there = objects.size(key)
    if there is not None and there != expected:
        return "", there
    hasher, size = hashlib.sha256(), 0
    with objects.open_read(key) as source:
        while True:
            try:
                chunk = source.read(CHUNK)
            except OSError as error:  # and not one that `sink` raises
                raise Failed(f"{objects.describe(key)}: {error.strerror}.") from error
            if not chunk or size > expected:  # one that grows while it is read has no end
                return hasher.hexdigest(), size
            hasher.update(chunk)
            size += len(chunk)
            sink(chunk)


def _extra(objects: ObjectStore, layout: SnapshotLayout, snapshot: SnapshotId, manifest: str) -> list[Problem]:
    """What lies beside the manifest. Blobs are another matter: they are shared, and `sweep` knows who needs them."""
    return [
        Problem(Fault.EXTRA, key, f"{objects.describe(key)} does not belong to snapshot {snapshot}; it does no harm.")
        for key in objects.list(layout.directory(snapshot))
        if key not in (manifest, layout.signature(snapshot)) and not key.startswith(layout.blobs)
    ]

"""What a snapshot of a live system holds, for whoever wants to look: states of nodes, messages in flight.

    cut = read_cut("bank")
    total = sum(state["balance"] for state in cut.states.values())

The system need not be running, and its classes need not be importable: states and messages come as plain values.
"""

from __future__ import annotations

from pathlib import Path

from strobe.hosts.live.api.topology import Topology
from strobe.hosts.live.snapshot.snapshots import Loaded, check_fits, check_protocol, load, to_cut
from strobe.model.cut import Cut
from strobe.model.errors import Misuse
from strobe.model.graph import Graph
from strobe.model.ids import SnapshotId
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JobLayout
from strobe.store.locate import locate
from strobe.store.manifest import Manifest
from strobe.store.signing import signer, wanted_signer
from strobe.store.snapshots import SnapshotStore

__all__ = ["load_any", "load_last", "load_named", "load_own", "own_store", "read_cut"]


def own_store(home: Path, topology: Topology) -> SnapshotStore:
    """Where the system's checkpoints are, signed if the topology names a key."""
    sign = None if topology.sign_with is None else signer(topology.sign_with)
    return SnapshotStore(FilesystemStore(home), JobLayout(topology.name), topology.name, sign=sign)


def read_cut(snapshot: str, home: Path = Path(".strobe")) -> Cut:
    """`snapshot` is named as for `strobe inspect`: NAME, NAME/12, or a directory."""
    manifest, loaded = load_any(snapshot, home)
    return to_cut(loaded, manifest.graph)


def load_any(name: str, home: Path) -> tuple[Manifest, Loaded]:
    """A snapshot of live processes, named in the same way, and what it says of itself."""
    found = locate(name, home)
    manifest = found.load()
    if manifest.host != "live":
        raise Misuse(f"Snapshot {name} is of a system on {manifest.host}, not of live processes.")
    return manifest, load(found.store, found.snapshot, manifest.graph, manifest)


def load_named(name: str, home: Path, topology: Topology, signed_by: str | None = None) -> Loaded:
    """A snapshot to start from, named in the same way, wherever it was taken. `signed_by` is the key that it must be
    signed by; without one the environment's, if it names any."""
    found = locate(name, home, signed_by=wanted_signer(signed_by))
    manifest = found.load()
    check_fits(manifest, topology.graph, topology.name)
    check_protocol(manifest, topology.protocol, topology.name)
    return load(found.store, found.snapshot, topology.graph, manifest)


def load_last(store: SnapshotStore, topology: Topology) -> Loaded | None:
    """The system's own newest snapshot, if it has one."""
    manifest = store.latest()
    if manifest is None:
        return None
    check_protocol(manifest, topology.protocol, topology.name)
    return load(store, manifest.snapshot, topology.graph)


def load_own(
    snapshot: SnapshotId, checkpoints: SnapshotStore, place: Path, savepoint: SnapshotStore, graph: Graph
) -> Loaded:
    """A system's own snapshot, by its number. As a savepoint it would be at `place`."""
    for store in (checkpoints, savepoint):
        if snapshot in store.list():
            return load(store, snapshot, graph)
    raise Misuse(
        f"System {checkpoints.job!r} has no snapshot {snapshot}.",
        untouched="It runs on as it was.",
        next=f"Its checkpoints: {', '.join(map(str, checkpoints.list())) or 'none'}; its savepoints are in "
        f"{place.parent}. One from elsewhere is named by its directory.",
    )

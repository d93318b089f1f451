"""What a snapshot of a live system holds, for whoever wants to look: states of nodes, messages in flight.

    cut = read_cut("bank")
    total = sum(state["balance"] for state in cut.states.values())

Nothing of the system need run, and none of its classes need be there: states and messages come as plain values.
"""

from __future__ import annotations

from pathlib import Path

from strobe.hosts.live.snapshots import load, to_cut
from strobe.model.cut import Cut
from strobe.model.errors import Misuse
from strobe.store.locate import locate

__all__ = ["read_cut"]


def read_cut(snapshot: str, home: Path = Path(".strobe")) -> Cut:
    """`snapshot` is named as for `strobe inspect`: NAME, NAME/12, or a directory."""
    found = locate(snapshot, home)
    manifest = found.load()
    if manifest.host != "live":
        raise Misuse(f"Snapshot {snapshot} is of a system on {manifest.host}, not of live processes.")
    return to_cut(load(found.store, found.snapshot, manifest.graph), manifest.graph)

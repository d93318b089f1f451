"""What a snapshot, or a job record, says of chained stages.

A stage that is chained has no record of its own: the query of another stage computes it, and knows where it stands.
That one's record names it, with the stage that reads it, so its uid stays known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from strobe.model.cut import Json
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId, check_uid
from strobe.store.manifest import Manifest

__all__ = ["CHAINED", "chained_in", "chained_links", "computed_by", "why_no_channel"]

CHAINED: Final = "chained"  # in what is noted of a stage: those that its query computes, and who reads each


def chained_in(manifest: Manifest) -> dict[NodeId, NodeId]:
    """The stages that were chained at the snapshot, and whose query computed each."""
    return computed_by((uid, record.extra) for uid, record in manifest.nodes.items())


def chained_links(manifest: Manifest) -> dict[NodeId, NodeId]:
    """The stages that were chained at the snapshot, and who read each."""
    return {uid: reader for record in manifest.nodes.values() for uid, reader in _chained(record.extra).items()}


def why_no_channel(manifest: Manifest, name: str) -> str:
    """A sentence for somebody who asks for a relation `name` of a stage that was chained; else nothing."""
    for uid, host in chained_in(manifest).items():
        if name.rpartition(".")[2].lower() == uid.lower():
            return (
                f"Stage {uid!r} was chained: the query of {host!r} computed it, so it had no channel and nothing in "
                f"flight; with chain=False at stage {uid!r}, from the job's next run on, it has. "
            )
    return ""


def computed_by(descriptions: Iterable[tuple[NodeId, Json]]) -> dict[NodeId, NodeId]:
    return {uid: host for host, described in descriptions for uid in _chained(described)}


def _chained(described: Json | Mapping[str, Json]) -> dict[NodeId, NodeId]:
    """What is not a uid is passed over: it comes from outside."""
    noted = described.get(CHAINED) if isinstance(described, Mapping) else None
    found: dict[NodeId, NodeId] = {}
    for uid, reader in noted.items() if isinstance(noted, Mapping) else ():
        try:
            found[NodeId(check_uid(uid, "stage"))] = NodeId(check_uid(str(reader), "stage"))
        except Misuse:
            continue
    return found

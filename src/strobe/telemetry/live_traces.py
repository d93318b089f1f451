"""Snapshots of a live system as traces: a tree of spans (`telemetry.spans`) with one for each node."""

from __future__ import annotations

from strobe.hosts.live.coordinator.outcomes import Event, SnapshotEnded
from strobe.hosts.live.snapshot.snapshots import messages_in_flight
from strobe.store.times import utc_seconds
from strobe.telemetry.spans import Attributes, Spans

__all__ = ["LiveTraces"]


class LiveTraces:
    """Hear what becomes of a system's snapshots, by `hear`."""

    def __init__(self, system: str) -> None:
        self._spans = Spans({"strobe.system": system})
        self.stop = self._spans.stop

    def hear(self, event: Event) -> None:
        if not isinstance(event, SnapshotEnded):
            return
        attributes: Attributes = {
            "strobe.snapshot.id": int(event.snapshot),
            "strobe.snapshot.status": "failed" if event.manifest is None else "complete",
        }
        took = {node: record.duration_ms or 0.0 for node, record in event.nodes.items()}
        if took:
            attributes["strobe.snapshot.slowest"] = max(took, key=lambda node: took[node])
        if event.manifest is not None:
            attributes["strobe.snapshot.bytes_new"] = min(event.manifest.bytes_new, event.manifest.bytes_total)
            attributes["strobe.snapshot.bytes_total"] = event.manifest.bytes_total
            attributes["strobe.snapshot.messages_in_flight"] = messages_in_flight(event.manifest)
        self._spans.snapshot(
            event.kind.value,
            utc_seconds(event.started),
            event.duration_ms,
            attributes,
            part="node",
            parts=event.nodes,
            manifest_ms=None if event.manifest is None else event.manifest_ms,
            failure=event.reason if event.manifest is None else None,
        )

"""A running system in figures, as people are shown it: rates, queues, snapshots.

Nodes count; a rate is the difference of two counts over the time between them. Counts go back with a restore, and then
the rate is that since the restore. The same values go to the view, and as JSON to whoever asks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from typing import Any, Final

import msgspec

from strobe.hosts.live.snapshot.snapshots import closed_ms, messages_in_flight
from strobe.hosts.live.system.checking import Checker, CheckReport
from strobe.hosts.live.system.invariants import InvariantReport
from strobe.hosts.live.system.system import Status, System
from strobe.hosts.live.wire.control import Figures
from strobe.hosts.shared.clock import SYSTEM, Clock
from strobe.model.errors import Failed
from strobe.model.graph import Channel
from strobe.model.ids import NodeId
from strobe.store.manifest import Manifest
from strobe.store.times import milliseconds_between

__all__ = ["ChannelReport", "NodeReport", "Report", "Reporter", "SnapshotReport", "report_from_json", "snapshot_report"]

_SPAN: Final = 2.0  # seconds over which a rate is taken, at most
_LEAST: Final = 0.2


@dataclass(frozen=True, slots=True)
class NodeReport:
    """`queued` messages wait for the node's handlers; `unacknowledged` ones are on their way from it."""

    node: str
    state: str
    pid: int | None
    sent: int
    received: int
    sent_per_second: float
    received_per_second: float
    queued: int
    unacknowledged: int
    connected: int
    outputs: int
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class ChannelReport:
    """Messages that its source has sent, that its target has taken, and that are on their way between them."""

    channel: str
    source: str
    target: str
    sent: int
    received: int
    unacknowledged: int
    connected: bool


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    """`gap_ms` is the longest that handlers of one node stood still for it."""

    snapshot: int
    kind: str
    completed: str
    took_ms: float
    gap_ms: float
    alignment_ms: float
    bytes_new: int
    bytes_total: int
    messages_in_flight: int


@dataclass(frozen=True, slots=True)
class Report:
    system: str
    state: str
    pid: int
    seconds: float
    incarnation: int
    restores: int
    completed: int
    failed: int
    reason: str
    retained: tuple[int, ...]
    pending: tuple[int, ...]
    nodes: tuple[NodeReport, ...]
    snapshots: tuple[SnapshotReport, ...]
    checks: tuple[CheckReport, ...] = ()
    channels: tuple[ChannelReport, ...] = ()
    invariants: tuple[InvariantReport, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def report_from_json(value: dict[str, Any]) -> Report:
    try:
        return msgspec.convert(value, Report)
    except msgspec.ValidationError as error:
        raise Failed(
            f"The system's answer cannot be read: {error}.", next="Use the same version of Strobe for both."
        ) from None


def snapshot_report(manifest: Manifest) -> SnapshotReport:
    nodes = manifest.nodes.values()
    return SnapshotReport(
        manifest.snapshot,
        manifest.kind.value,
        manifest.completed,
        milliseconds_between(manifest.started, manifest.completed),
        max((node.sync_ms for node in nodes), default=0.0),
        max(map(closed_ms, nodes), default=0.0),
        min(manifest.bytes_new, manifest.bytes_total),  # nodes with equal states share a file
        manifest.bytes_total,
        messages_in_flight(manifest),
    )


class Reporter:
    """Reports on one system. Whoever asks, and however often: rates are over the last seconds."""

    def __init__(self, system: System, pid: int, checker: Checker, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._system = system
        self._checker = checker
        self._pid = pid
        self._began = clock.monotonic()
        self._samples: deque[tuple[float, int, dict[NodeId, tuple[int, int]]]] = deque()

    async def take(self, state: str | None = None) -> Report:
        status = await self._system.status()
        now = self._clock.monotonic()
        counts = {node: (sum(f.sent.values()), sum(f.received.values())) for node, f in status.nodes.items()}
        before = self._before(now, status.incarnation, counts)
        aborted = list(status.aborted.values())
        return Report(
            system=status.name,
            state=state or ("running" if status.running else "restoring"),
            pid=self._pid,
            seconds=now - self._began,
            incarnation=status.incarnation,
            restores=max(0, status.restores - 1),  # the first is the start
            completed=status.completed,
            failed=len(aborted),
            reason=aborted[-1] if aborted else "",
            retained=tuple(status.snapshots),
            pending=tuple(status.pending),
            nodes=tuple(self._node(node.name, status, counts, before, now) for node in self._system.topology.nodes),
            snapshots=tuple(map(snapshot_report, status.recent)),
            checks=self._checker.reports,
            channels=tuple(_channel(channel, status) for channel in self._system.topology.channels),
            invariants=self._checker.invariants.reports,
        )

    def _before(
        self, now: float, incarnation: int, counts: dict[NodeId, tuple[int, int]]
    ) -> tuple[float, dict[NodeId, tuple[int, int]]] | None:
        samples = self._samples
        while samples and (now - samples[0][0] > _SPAN or samples[0][1] != incarnation):
            samples.popleft()
        first = (samples[0][0], samples[0][2]) if samples and now - samples[0][0] >= _LEAST else None
        samples.append((now, incarnation, counts))
        return first

    def _node(
        self,
        node: NodeId,
        status: Status,
        counts: dict[NodeId, tuple[int, int]],
        before: tuple[float, dict[NodeId, tuple[int, int]]] | None,
        now: float,
    ) -> NodeReport:
        figures: Figures | None = status.nodes.get(node)
        sent, received = counts.get(node, (0, 0))
        rates = (0.0, 0.0)
        if before is not None and node in before[1]:
            span, (old_sent, old_received) = now - before[0], before[1][node]
            rates = (max(0, sent - old_sent) / span, max(0, received - old_received) / span)
        missing = status.missing.get(node)
        state = "missing" if missing is not None else "silent" if figures is None else figures.phase
        return NodeReport(
            node,
            state,
            status.processes.get(node),
            sent,
            received,
            *rates,
            0 if figures is None else figures.queued,
            0 if figures is None else sum(figures.unacknowledged.values()),
            0 if figures is None else sum(figures.connected.values()),
            len(self._system.topology.graph.outputs(node)),
            missing or "",
        )


def _channel(channel: Channel, status: Status) -> ChannelReport:
    source, target = status.nodes.get(channel.source), status.nodes.get(channel.target)
    return ChannelReport(
        channel.id,
        channel.source,
        channel.target,
        0 if source is None else source.sent.get(channel.id, 0),
        0 if target is None else target.received.get(channel.id, 0),
        0 if source is None else source.unacknowledged.get(channel.id, 0),
        source is not None and source.connected.get(channel.id, False),
    )

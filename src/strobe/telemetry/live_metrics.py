"""The metrics of a system of live processes: a pure function of its report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from strobe.hosts.live.system.report import NodeReport, Report, SnapshotReport
from strobe.store.times import utc_seconds
from strobe.telemetry.families import Family, Metric, MetricKind, Of, Values, gather
from strobe.telemetry.invariant_metrics import invariant_metrics

__all__ = ["LIVE_INVARIANT_METRICS", "NODE_METRICS", "SYSTEM_METRICS", "system_families"]


def system_families(report: Report) -> list[Family]:
    system = (report.system,)
    return [
        *gather(SYSTEM_METRICS, [(system, report)]),
        *gather(NODE_METRICS, [((*system, node.node), node) for node in report.nodes]),
        *gather(LIVE_INVARIANT_METRICS, [((*system, each.name), each) for each in report.invariants]),
    ]


def _system(
    name: str, kind: MetricKind, help: str, value: Callable[[Report], Values], *, label: str = "", flink: str = ""
) -> Of[Report]:
    labels = ("system", label) if label else ("system",)
    return Of(Metric(f"strobe_live_{name}", kind, help, labels, flink), value)


def _of_last(value: Callable[[SnapshotReport], Values]) -> Callable[[Report], Values]:
    return lambda report: value(report.snapshots[-1]) if report.snapshots else None


SYSTEM_METRICS: Final = (
    _system("running", MetricKind.GAUGE, "1 while all nodes run, 0 while the system is restored or ends",
            lambda r: float(r.state == "running")),
    _system("uptime_seconds", MetricKind.GAUGE, "Since the system was brought up", lambda r: r.seconds, flink="uptime"),
    _system("incarnation", MetricKind.GAUGE, "Rises with every start and restore", lambda r: float(r.incarnation)),
    _system("num_restarts_total", MetricKind.COUNTER, "Times that the system has gone back to a snapshot",
            lambda r: float(r.restores), flink="numRestarts"),
    _system("number_of_completed_checkpoints_total", MetricKind.COUNTER, "Snapshots that are complete",
            lambda r: float(r.completed), flink="numberOfCompletedCheckpoints"),
    _system("number_of_failed_checkpoints_total", MetricKind.COUNTER, "Snapshots that were given up",
            lambda r: float(r.failed), flink="numberOfFailedCheckpoints"),
    _system("number_of_in_progress_checkpoints", MetricKind.GAUGE, "Snapshots that are under way",
            lambda r: float(len(r.pending)), flink="numberOfInProgressCheckpoints"),
    _system("last_completed_checkpoint_id", MetricKind.GAUGE, "Id of the last complete snapshot",
            _of_last(lambda s: float(s.snapshot)), flink="lastCompletedCheckpointId"),
    _system("last_checkpoint_timestamp_seconds", MetricKind.GAUGE, "When the last complete snapshot was, in Unix time",
            _of_last(lambda s: utc_seconds(s.completed))),
    _system("last_checkpoint_duration_seconds", MetricKind.GAUGE, "How long the last complete snapshot took",
            _of_last(lambda s: s.took_ms / 1000), flink="lastCheckpointDuration"),
    _system("last_checkpoint_gap_seconds", MetricKind.GAUGE, "The longest that one node stood still for it",
            _of_last(lambda s: s.gap_ms / 1000)),
    _system("last_checkpoint_size_bytes", MetricKind.GAUGE, "What it has newly stored",
            _of_last(lambda s: float(s.bytes_new)), flink="lastCheckpointSize"),
    _system("last_checkpoint_full_size_bytes", MetricKind.GAUGE, "All that it consists of",
            _of_last(lambda s: float(s.bytes_total)), flink="lastCheckpointFullSize"),
    _system("last_checkpoint_in_flight_messages", MetricKind.GAUGE, "Messages in channels that belong to it",
            _of_last(lambda s: float(s.messages_in_flight)), flink="lastCheckpointPersistedData"),
    _system("check_found", MetricKind.GAUGE, "1 if the last snapshot showed what the check looks for, 0 if not",
            lambda r: {c.check: None if c.found is None else float(c.found) for c in r.checks}, label="check"),
)  # fmt: skip


def _node(
    name: str, kind: MetricKind, help: str, value: Callable[[NodeReport], Values], *, flink: str = ""
) -> Of[NodeReport]:
    return Of(Metric(f"strobe_live_node_{name}", kind, help, ("system", "node"), flink), value)


NODE_METRICS: Final = (
    _node("running", MetricKind.GAUGE, "1 if the node runs", lambda n: float(n.state == "running")),
    _node("num_records_in_total", MetricKind.COUNTER, "Messages that it has received; goes back with a restore",
          lambda n: float(n.received), flink="numRecordsIn"),
    _node("num_records_in_per_second", MetricKind.GAUGE, "The same, a second, over the last seconds",
          lambda n: n.received_per_second, flink="numRecordsInPerSecond"),
    _node("num_records_out_total", MetricKind.COUNTER, "Messages that it has sent; goes back with a restore",
          lambda n: float(n.sent), flink="numRecordsOut"),
    _node("num_records_out_per_second", MetricKind.GAUGE, "The same, a second, over the last seconds",
          lambda n: n.sent_per_second, flink="numRecordsOutPerSecond"),
    _node("queued_messages", MetricKind.GAUGE, "Messages that wait for its handlers", lambda n: float(n.queued),
          flink="inputQueueLength"),
    _node("unacknowledged_messages", MetricKind.GAUGE, "Messages that are on their way from it",
          lambda n: float(n.unacknowledged), flink="outputQueueLength"),
    _node("disconnected_channels", MetricKind.GAUGE, "Channels from it that are not connected",
          lambda n: float(n.outputs - n.connected)),
)  # fmt: skip

LIVE_INVARIANT_METRICS: Final = invariant_metrics(
    "strobe_live_invariant", "system", "snapshot", "were overtaken before their turn"
)

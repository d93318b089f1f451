"""Homes that look as if jobs had run in them, and jobs that are only a control API: without Spark, and as large as one
likes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from strobe.hosts.spark.home.history import PastSnapshot, PastStage, SnapshotHistory
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.job.control import control_server
from strobe.model.graph import Channel, Graph
from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId, Timeline
from strobe.model.kind import Kind
from strobe.store.codec import encode
from strobe.store.layout import JobLayout
from strobe.store.manifest import ChannelRecord, InFlight, Manifest, NodeRecord, SinkRecord, Timing

Reads = Mapping[str, Sequence[str]]  # a stage and what it reads

LEDGER: Reads = {
    "transfers": [], "postings": ["transfers"], "balances": ["postings"], "suspects": ["transfers"],
    "flagged": ["suspects", "transfers"],
}  # fmt: skip
PHASES = ("start_delay", "alignment", "sync", "channels", "async", "prepare", "acknowledge")


def at(second: int) -> str:
    return (
        f"2031-05-{17 + second // 86400:02d}T{second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}.000Z"
    )


def wide(count: int) -> Reads:
    """That many stages: sources that fan out, layers of joins, one end."""
    names = [f"stage-{i:02d}" for i in range(count)]
    reads: dict[str, list[str]] = {}
    for i, name in enumerate(names):
        reads[name] = [] if i < 4 else [names[(i - 4) // 2], names[i - 4]] if i % 3 else [names[i - 4]]
        reads[name] = list(dict.fromkeys(reads[name]))
    return reads


def graph_of(reads: Reads, feedback: tuple[tuple[str, str], ...] = ()) -> Graph:
    channels = [
        Channel(ChannelId(f"{p}.{c}"), NodeId(p), NodeId(c), (p, c) in feedback) for c, of in reads.items() for p in of
    ]
    return Graph(tuple(map(NodeId, reads)), tuple(channels))


def a_manifest(job: str, snapshot: int, reads: Reads = LEDGER, *, kind: Kind = Kind.CHECKPOINT) -> Manifest:
    def record(i: int) -> NodeRecord:
        timing = Timing(start_delay_ms=20.0 * i, channels_ms=0, prepare_ms=3, acknowledge_ms=1)
        return NodeRecord(
            batch=snapshot * 10, output=snapshot, partitions=2, state_rows=100 * i, bytes_new=1000,
            bytes_total=5000 + i, alignment_ms=10.0 * i, sync_ms=4, async_ms=60, timing=timing,
        )  # fmt: skip

    producers = {p for of in reads.values() for p in of}
    return Manifest(
        SnapshotId(snapshot), kind, job, "spark", Timeline(1), Incarnation(1), "aligned", at(snapshot * 5),
        at(snapshot * 5 + 1), graph_of(reads), {NodeId(n): record(i) for i, n in enumerate(reads)},
        {
            ChannelId(p): ChannelRecord(
                NodeId(p), f"jobs/{job}/channels/{p}", 30,
                {NodeId(c): InFlight(28, 30, 17) for c, of in reads.items() if p in of},
            )
            for p in producers
        },
        {f"{list(reads)[-1]}/delta": SinkRecord({"path": "/out/table", "version": snapshot})},
    )  # fmt: skip


def put_manifest(home: Path, manifest: Manifest) -> None:
    path = home / JobLayout(manifest.job).manifest(manifest.snapshot)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(manifest))


def put_history(home: Path, job: str, count: int, reads: Reads = LEDGER, *, fails: int = 0) -> None:
    """`count` snapshots; every `fails`-th one has failed."""
    path = home / JobLayout(job).history
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for n in range(1, count + 1):
        failed = bool(fails) and n % fails == 0
        took = 200.0 + (n * 37) % 90
        phases = dict(zip(PHASES, (took * 0.3, took * 0.2, 4.0, 0.0, took * 0.4, 3.0, 1.0), strict=True))
        stages = {uid: PastStage(phases, 1000, 5000 * n, 3, n * 10, n) for uid in reads}
        past = PastSnapshot(
            n, "checkpoint", "failed" if failed else "complete", at(n * 5), at(n * 5 + 1), 1 + n // 5000, 1, took,
            {**phases, "manifest": 12.0}, "" if failed else list(reads)[-1], 1000 + n, 5000 * n, 3 * len(reads),
            "stage 'balances' was lost: its query failed" if failed else "", {} if failed else stages,
        )  # fmt: skip
        lines.append(past)
    history = SnapshotHistory(path)
    if count <= 50:
        for past in lines:
            history.note(past)
    else:
        import msgspec

        path.write_bytes(b"".join(msgspec.json.encode(p) + b"\n" for p in lines))


def put_runtime(home: Path, job: str, **facts: Any) -> None:
    path = home / JobLayout(job).runtime
    path.parent.mkdir(parents=True, exist_ok=True)
    known = {
        "job": job,
        "state": "finished",
        "pid": 1,
        "host": "elsewhere",
        "started": at(0),
        "incarnation": 1,
        "error": "",
    }
    path.write_text(json.dumps({**known, **facts}))


def a_stage(uid: str, **figures: Any) -> dict[str, Any]:
    return {
        "uid": uid, "state": "running", "batch": 41, "rows_per_second": 512.5, "rows_in": 250, "rows_out": 12000,
        "lag_rows": 120, "batch_ms": 210.0, "state_rows": 1000, "restarts": 0, "error": "",
        "dead_letters": 0, **figures,
    }  # fmt: skip


def a_status(job: str, reads: Reads = LEDGER, **facts: Any) -> dict[str, Any]:
    return {
        "job": job, "state": "running", "pid": 4711, "incarnation": 1, "timeline": 1, "started": at(0), "seconds": 12.5,
        "stages": [a_stage(uid) for uid in reads], "completed": 3, "failed": 0, "failures_in_a_row": 0,
        "checkpoints": [], "error": "", "sinks": [], "barriers": [],
        "channels": [
            {"producer": p, "consumer": c, "feedback": False, "rows_waiting": 120, "commits_waiting": 2}
            for c, of in reads.items() for p in of
        ],
        **facts,
    }  # fmt: skip


def under_way(
    job: str, phases: Mapping[str, tuple[str, Sequence[str], Sequence[str]]], snapshot: int = 4
) -> dict[str, Any]:
    """The status of a job with a snapshot under way: for each stage its phase, whose barriers it has, and has not."""
    progress = {
        "snapshot": snapshot,
        "kind": "checkpoint",
        "status": "in progress",
        "started": at(20),
        "acknowledged": 1,
    }
    barriers = [
        {"snapshot": snapshot, "stage": s, "phase": phase, "arrived": list(arrived), "waits_for": list(waits)}
        for s, (phase, arrived, waits) in phases.items()
    ]
    return a_status(job, checkpoints=[progress], barriers=barriers)


Action = Callable[[dict[str, Any]], Any]


@contextlib.contextmanager
def running(home: Path, job: str, status: Action, **orders: Action) -> Iterator[JobHome]:
    """A job that is nothing but its lock, its heartbeat and its control API."""

    def fenced(reason: str) -> None:
        raise AssertionError(reason)

    held = JobHome(home, job)
    held.claim(fenced)
    actions = {("GET", "/v1/status"): status, **{("POST", f"/v1/{name}"): act for name, act in orders.items()}}
    server = control_server(home / held.layout.token, actions)
    held.publish(
        job=job, state="running", pid=4711, host="elsewhere", started=at(0), incarnation=1, error="", port=server.port
    )
    try:
        yield held
    finally:
        held.publish(state="finished", port=None)
        server.stop()
        held.release()

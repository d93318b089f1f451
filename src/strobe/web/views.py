"""The records that the page's API answers with. `description` makes the OpenAPI document from them.

What a running job says of a stage goes through as `figures`, by the names of the control API: a figure that a newer
Strobe adds is shown without a change here.
"""

from __future__ import annotations

from typing import Any

import msgspec

from strobe.hosts.spark.home.history import PastSnapshot

__all__ = [
    "Answer", "BarrierView", "Box", "ChannelView", "Drawing", "JobRow", "JobView", "LastSnapshot", "NodePart", "Plan",
    "Position", "Refusal", "Restorable", "Rows", "Session", "SinkPart", "SnapshotPage", "SnapshotRow", "SnapshotView",
    "StageView", "SystemView", "Wire",
]  # fmt: skip


class Refusal(msgspec.Struct, frozen=True):
    """What happened, what was left as it was, what to do."""

    error: str
    untouched: str = ""
    next: str = ""


class Session(msgspec.Struct, frozen=True):
    """Which home the page shows. `readable`: its name on the command line."""

    version: str
    home: str
    read_only: bool
    sql: bool


# ── a graph ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Box(msgspec.Struct, frozen=True):
    """A node of a drawing, by its upper left corner."""

    node: str
    x: float
    y: float


class Wire(msgspec.Struct, frozen=True):
    """A channel of a drawing. `path` is an SVG path from the source's right to the target's left side; `label` a spot
    on it that has room for a number."""

    source: str
    target: str
    feedback: bool
    path: str
    label_x: float
    label_y: float


class Drawing(msgspec.Struct, frozen=True):
    width: float
    height: float
    box_width: float
    box_height: float
    boxes: list[Box] = []
    wires: list[Wire] = []


# ── jobs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class LastSnapshot(msgspec.Struct, frozen=True):
    snapshot: int
    kind: str
    status: str
    ended: str
    duration_ms: float


class JobRow(msgspec.Struct, frozen=True):
    """A job, or a live system, in a line. `trouble`: it runs and could not be asked, and why. `error`: its own.
    `violated`: how many of its invariants did not hold when they were last asked."""

    name: str
    kind: str
    state: str
    live: bool
    started: str = ""
    ended: str = ""
    error: str = ""
    trouble: str = ""
    incarnation: int | None = None
    stages: int | None = None
    lag_rows: int | None = None
    last: LastSnapshot | None = None
    retained: list[int] | None = None
    invariants: int = 0
    violated: int = 0


class StageView(msgspec.Struct, frozen=True):
    """A stage. `mood`: busy, idle, held (it waits for a barrier), restarting, failed, ended, unknown. `settings` as its
    pipeline's file has them, if `strobe run` has noted them."""

    uid: str
    mood: str = "unknown"
    state: str = ""
    error: str = ""
    figures: dict[str, Any] = {}
    description: dict[str, Any] = {}
    sinks: list[str] = []
    settings: dict[str, str] = {}


class ChannelView(msgspec.Struct, frozen=True):
    """`rows_in_flight`: at the newest snapshot that is kept. `chained`: there is no channel, the consumer's query
    computes the producer."""

    producer: str
    consumer: str
    feedback: bool = False
    rows_waiting: int | None = None
    commits_waiting: int | None = None
    rows_in_flight: int | None = None
    chained: bool = False


class BarrierView(msgspec.Struct, frozen=True):
    """`phase`: ahead, aligning, recording, storing, acknowledged. See `BarrierStatus` of the control API."""

    snapshot: int
    stage: str
    phase: str
    arrived: list[str] = []
    waits_for: list[str] = []


class JobView(msgspec.Struct, frozen=True):
    """`known_by`: where the graph comes from: the running job, or a snapshot, or nowhere yet."""

    job: JobRow
    drawing: Drawing
    known_by: str
    stages: list[StageView] = []
    channels: list[ChannelView] = []
    barriers: list[BarrierView] = []
    sinks: list[dict[str, Any]] = []
    under_way: list[dict[str, Any]] = []
    facts: dict[str, Any] = {}
    target: str = ""
    sampled: float = 0.0


# ── snapshots ───────────────────────────────────────────────────────────────────────────────────────────────────────


class SnapshotRow(msgspec.Struct, frozen=True):
    """`kept`: its manifest is there, and it can be looked into."""

    snapshot: int
    kind: str
    status: str
    started: str
    ended: str
    incarnation: int
    timeline: int
    duration_ms: float
    phases: dict[str, float]
    slowest: str
    bytes_new: int
    bytes_total: int
    rows_in_flight: int
    reason: str
    kept: bool


class SnapshotPage(msgspec.Struct, frozen=True):
    """Newest first. `total` of the history; `chart` is of all of it, thinned out: oldest first, as columns."""

    job: str
    total: int
    failed: int
    rows: list[SnapshotRow] = []
    chart: dict[str, list[float]] = {}


class Position(msgspec.Struct, frozen=True):
    """A channel at the cut, for one of its readers."""

    channel: str
    consumer: str
    barrier: int | None
    after: int | None
    rows: int | None


class NodePart(msgspec.Struct, frozen=True):
    """A stage's part. `phases` in milliseconds, in order, from the trigger on."""

    node: str
    phases: dict[str, float] = {}
    duration_ms: float = 0.0
    batch: int | None = None
    partitions: int | None = None
    state_rows: int | None = None
    files: int | None = None
    bytes_new: int = 0
    bytes_total: int = 0
    output: int | None = None
    inputs: dict[str, int] = {}
    offsets: str = ""


class SinkPart(msgspec.Struct, frozen=True):
    """Where a sink stood, if there is no `handle`; otherwise the part of that handle, which it has prepared."""

    sink: str
    handle: str | None
    data: str


class SnapshotView(msgspec.Struct, frozen=True):
    """`kept`: from its manifest; otherwise from the history, which has less. `content`: states and messages of a live
    system's snapshot."""

    job: str
    host: str
    past: PastSnapshot
    kept: bool
    mode: str = ""
    root: str = ""
    where: str = ""
    drawing: Drawing | None = None
    nodes: list[NodePart] = []
    positions: list[Position] = []
    sinks: list[SinkPart] = []
    content: dict[str, str] = {}
    in_flight: dict[str, str] = {}


class Restorable(msgspec.Struct, frozen=True):
    """`why_not` is empty if everything that it needs is there."""

    snapshot: int
    why_not: str


class Plan(msgspec.Struct, frozen=True):
    """What a restore would do, as `strobe run --dry-run --json` says it, and the command that does it."""

    command: str
    plan: dict[str, Any]


class Rows(msgspec.Struct, frozen=True):
    """What a query found, as text; `more`: only the first are here."""

    columns: list[str]
    rows: list[list[str]]
    more: bool = False


class Answer(msgspec.Struct, frozen=True):
    """The result of an order: the job's own answer, or the command's."""

    done: dict[str, Any]


class SystemView(msgspec.Struct, frozen=True):
    """A system of live processes. `report` is its own, and empty if it does not run."""

    job: JobRow
    drawing: Drawing
    report: dict[str, Any] = {}
    snapshots: list[SnapshotRow] = []
    journal: bool = False
    sampled: float = 0.0

"""A running job as an operator looks at it: tables for `strobe status`, and for `--watch`.

Every table is whole on 80 columns unless names are long. What does not apply to a job has no table.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from strobe.cli.figures import human_bytes
from strobe.cli.live_view import (
    broken,
    checkpoint_table,
    doubts,
    held_back,
    invariants_line,
    phase_table,
    reasons,
    stage_table,
)
from strobe.hosts.spark.snapshot.metrics import Backlog, JobStatus, SinkStatus, StageStatus
from strobe.hosts.spark.snapshot.progress import Progress

__all__ = ["checkpoint_tables", "event_time_table", "job_view", "sink_table"]

_NONE = "–"


def job_view(status: JobStatus, checkpoints: int = 10) -> RenderableType:
    shown = status.checkpoints[-checkpoints:]
    tables = (stage_table(status.stages), event_time_table(status.stages), sink_table(status.sinks))
    return Group(
        *_head(status),
        *(part for table in tables if table is not None for part in (table, Text())),
        *checkpoint_tables(shown),
        *((Text(invariants_line(status.invariants)),) if status.invariants else ()),
        *map(_line, reasons(status.stages, shown)),
        *map(_line, (*doubts(status.sinks), *broken(status.invariants), *held_back(status))),
    )


def _head(status: JobStatus) -> list[Text]:
    lines = [
        Text.assemble(
            (status.job, "bold"), f"  {status.state}  {status.seconds:.0f} s  pid {status.pid}  "
            f"incarnation {status.incarnation}  timeline {status.timeline}",
        )
    ]  # fmt: skip
    if status.error:
        lines.append(_line(Text.assemble(("error: ", "red"), status.error)))
    if status.next_checkpoint_s is not None:
        under_way = [p for p in status.checkpoints if p.status == "in progress"]
        now = "".join(f"{p.kind.value} {p.snapshot} is under way, " for p in under_way)
        lines.append(Text(f"{now}next checkpoint in {status.next_checkpoint_s:.0f} s"))
    if status.spark_ui:
        lines.append(Text(f"Spark's own page: {status.spark_ui}"))
    if status.supervisor is not None:
        s = status.supervisor
        said = f"supervised by process {s.pid}, restarts {s.restarts}"
        lines.append(_line(Text(f"{said}, the last at {s.at}: {s.cause}" if s.restarts else said)))
    return lines


def event_time_table(stages: tuple[StageStatus, ...]) -> Table | None:
    """Event time and sources of the stages; None if no stage has any."""
    shown = [s for s in stages if s.watermark is not None or s.backlog is not None or s.late_rows]
    if not shown:
        return None
    table = _table("stage")
    table.add_column("watermark", no_wrap=True)
    table.add_column("late dropped", justify="right", no_wrap=True)
    table.add_column("source backlog", justify="right", no_wrap=True)
    for stage in shown:
        late = Text(f"{stage.late_rows:,}", style="yellow") if stage.late_rows else _NONE
        when = _NONE if stage.watermark is None else stage.watermark.replace("T", " ").removesuffix(".000Z")
        table.add_row(stage.uid, when, late, _backlog(stage.backlog))
    return table


def sink_table(sinks: tuple[SinkStatus, ...]) -> Table | None:
    if not sinks:
        return None
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("sink", no_wrap=True)
    for name in ("rows", "rows/s", "dead letters", "in doubt"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("to", overflow="fold")  # the column that shrinks in a narrow terminal
    for sink in sinks:
        table.add_row(
            sink.sink,
            _NONE if sink.rows is None else f"{sink.rows:,}",
            _NONE if sink.rows_per_second is None else f"{sink.rows_per_second:,.0f}",
            f"{sink.dead_letters:,}" if sink.dead_letters else _NONE,
            f"{sink.in_doubt:,}" if sink.in_doubt else _NONE,
            sink.where,
        )
    return table


def checkpoint_tables(checkpoints: tuple[Progress, ...]) -> list[RenderableType]:
    """The recent checkpoints, and where the time of the complete ones went."""
    phases = phase_table(checkpoints)
    where: tuple[RenderableType, ...] = ()
    if phases is not None:
        where = (Text("where the time went", style="bold"), phases)
    return [checkpoint_table(checkpoints), *where]


def _backlog(backlog: Backlog | None) -> str:
    if backlog is None:
        return _NONE
    parts = []
    if backlog.rows is not None:
        parts.append(f"{backlog.rows:,} rows")
    if backlog.files is not None:
        parts.append(f"{backlog.files:,} files")
    if backlog.bytes:
        parts.append(human_bytes(backlog.bytes))
    return ", ".join(parts)


def _line(text: Text) -> Text:
    text.no_wrap, text.overflow = False, "fold"
    return text


def _table(first: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, overflow="ellipsis")
    return table

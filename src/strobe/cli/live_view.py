"""A job while it runs: a table that refreshes on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from strobe.hosts.spark.coordinator_host import Progress
from strobe.hosts.spark.metrics import JobStatus, StageStatus

__all__ = ["LiveView", "PlainView", "checkpoint_table", "human_bytes", "human_ms", "stage_table"]

_REFRESH = 0.5
_PLAIN_EVERY = 20  # refreshes between two lines on the stages


class Watched(Protocol):
    def status(self) -> JobStatus: ...


def human_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def human_ms(value: float) -> str:
    return f"{value:.0f} ms" if value < 10_000 else f"{value / 1000:.1f} s"


def stage_table(stages: tuple[StageStatus, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage")
    table.add_column("state")
    for name in ("batch", "rows/s", "lag (rows)", "batch time", "state rows", "restarts"):
        table.add_column(name, justify="right")
    for stage in stages:
        colour = {"running": "green", "ended": "green", "restarting": "yellow", "failed": "red"}.get(stage.state, "")
        table.add_row(
            stage.uid,
            Text(stage.state, style=colour),
            str(stage.batch) if stage.batch >= 0 else "–",
            f"{stage.rows_per_second:,.0f}",
            f"{stage.lag_rows:,}",
            human_ms(stage.batch_ms) if stage.batch_ms else "–",
            "–" if stage.state_rows is None else f"{stage.state_rows:,}",
            str(stage.restarts) if stage.restarts else "–",
        )
    return table


def checkpoint_table(checkpoints: tuple[Progress, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("snapshot", justify="right")
    table.add_column("status")
    for name in ("duration", "alignment", "sync", "async", "new", "total", "in flight"):
        table.add_column(name, justify="right")
    for p in checkpoints:
        colour = {"complete": "green", "failed": "red"}.get(p.status, "yellow")
        done = p.status == "complete"
        table.add_row(
            f"{p.kind.value[:4]} {p.snapshot}",
            Text(p.status, style=colour),
            human_ms(p.duration_ms) if p.duration_ms else "–",
            *((human_ms(p.alignment_ms), f"{p.sync_ms:.1f} ms", human_ms(p.async_ms)) if done else ("–", "–", "–")),
            *((human_bytes(p.bytes_new), human_bytes(p.bytes_total), f"{p.rows_in_flight:,}") if done else ("–",) * 3),
        )
        if p.reason:
            table.add_row("", Text(p.reason, style="red"))
    return table


class _View:
    """Refreshes in a thread of its own while the job runs."""

    def __init__(self, job: Watched) -> None:
        self._job = job
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="view", daemon=True)

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        count = 0
        while not self._done.wait(_REFRESH):
            self.refresh(self._job.status(), count)
            count += 1

    def refresh(self, status: JobStatus, count: int) -> None:
        raise NotImplementedError

    def note(self, line: str) -> None:
        raise NotImplementedError


class LiveView(_View):
    def __init__(self, console: Console, job: Watched) -> None:
        super().__init__(job)
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__()
        self._live.__exit__(*exception)

    def refresh(self, status: JobStatus, count: int) -> None:
        head = Text.assemble(
            (status.job, "bold"), f"  {status.state}  {status.seconds:.0f} s  incarnation {status.incarnation}  ",
            f"checkpoints {status.completed}", (f"  failed {status.failed}" if status.failed else "", "red"),
        )  # fmt: skip
        tables = Group(head, "", stage_table(status.stages), "", checkpoint_table(status.checkpoints[-5:]))
        self._live.update(tables, refresh=True)

    def note(self, line: str) -> None:
        self._console.print(Text(line, style="yellow"))

    def farewell(self, status: JobStatus) -> None:
        self._console.print(stage_table(status.stages))
        self._console.print(_farewell(status))


class PlainView(_View):
    """One line per finished snapshot, and now and then one on the stages."""

    def __init__(self, say: Callable[[str], None], job: Watched) -> None:
        super().__init__(job)
        self._say = say
        self._told: set[int] = set()

    def refresh(self, status: JobStatus, count: int) -> None:
        for p in status.checkpoints:
            if p.status != "in progress" and p.snapshot not in self._told:
                self._told.add(p.snapshot)
                self._say(_line(p))
        if count % _PLAIN_EVERY == 0:
            stages = "; ".join(
                f"{s.uid} {s.state}, batch {s.batch}, {s.rows_per_second:,.0f} rows/s, lag {s.lag_rows:,}"
                for s in status.stages
            )
            self._say(f"{status.seconds:6.0f} s  {stages}")

    def note(self, line: str) -> None:
        self._say(line)

    def farewell(self, status: JobStatus) -> None:
        self.refresh(status, 1)
        self._say(_farewell(status))


def _line(p: Progress) -> str:
    if p.status == "failed":
        return f"{p.kind.value} {p.snapshot} failed after {human_ms(p.duration_ms)}: {p.reason}"
    return (
        f"{p.kind.value} {p.snapshot} complete in {human_ms(p.duration_ms)}: alignment {human_ms(p.alignment_ms)}, "
        f"sync {p.sync_ms:.1f} ms, async {human_ms(p.async_ms)}, new {human_bytes(p.bytes_new)} of "
        f"{human_bytes(p.bytes_total)}, {p.rows_in_flight:,} rows in flight"
    )


def _farewell(status: JobStatus) -> str:
    return f"job {status.job} is {status.state} after {status.seconds:.0f} s; checkpoints complete: {status.completed}"

"""A job while it runs: a table that refreshes on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from strobe.cli.figures import human_bytes, human_ms, human_phase
from strobe.cli.output import printable
from strobe.hosts.spark.commit.holding import explain_held
from strobe.hosts.spark.snapshot.coordinator import Progress
from strobe.hosts.spark.snapshot.metrics import BadFileStatus, InvariantStatus, JobStatus, SinkStatus, StageStatus
from strobe.model.invariants import Outcome
from strobe.model.kind import Kind

__all__ = [
    "LiveView", "PlainView", "bad_files_line", "broken", "checkpoint_table", "doubts", "held_back", "invariants_line",
    "phase_table", "reasons", "shown_phases", "stage_table",
]  # fmt: skip

_REFRESH = 0.5
_CHECKPOINTS = 5  # in the live view
_RARE_PHASES = ("channels", "prepare", "acknowledge")  # are shown when they took a millisecond
_PLAIN_EVERY = 20  # refreshes between two lines on the stages


class Watched(Protocol):
    def status(self) -> JobStatus: ...


def stage_table(stages: tuple[StageStatus, ...]) -> Table:
    """One line each, fits into 80 columns unless uids are long: then the uids are cut short, never a figure."""
    table = _table("stage")
    table.add_column("state", no_wrap=True)
    measured = any(s.busy is not None for s in stages)
    for name in ("batch", "took", *(("busy",) if measured else ()), "rows/s", "lag rows", "state rows"):
        table.add_column(name, justify="right", no_wrap=True)
    # Figures that are zero in most jobs get a column only when there is something to show.
    rare = {
        "restarts": [s.restarts for s in stages],
        "dead letters": [s.dead_letters for s in stages],
        "bad files": [s.bad_files for s in stages],
    }
    rare = {name: figures for name, figures in rare.items() if any(figures)}
    for name in rare:
        table.add_column(name, justify="right", no_wrap=True)
    for index, stage in enumerate(stages):
        colour = {"running": "green", "ended": "green", "restarting": "yellow", "failed": "red"}.get(stage.state, "")
        table.add_row(
            stage.uid,
            Text(f"in {stage.chained_into}" if stage.chained_into else stage.state, style=colour),
            str(stage.batch) if stage.batch >= 0 else "–",
            human_ms(stage.batch_ms) if stage.batch_ms else "–",
            *(("–" if stage.busy is None else f"{stage.busy:.0%}",) if measured else ()),
            f"{stage.rows_per_second:,.0f}",
            _count(stage.lag_rows),
            _count(stage.state_rows),
            *(f"{figures[index]:,}" if figures[index] else "–" for figures in rare.values()),
        )
    return table


def checkpoint_table(checkpoints: tuple[Progress, ...]) -> Table:
    table = _table("id")
    table.add_column("checkpoint", no_wrap=True)
    for name in ("took", "new", "total", "in flight"):
        table.add_column(name, justify="right", no_wrap=True)
    for p in checkpoints:
        colour = {"complete": "green", "failed": "red"}.get(p.status, "yellow")
        done = p.status == "complete"
        table.add_row(
            str(p.snapshot) if p.kind is Kind.CHECKPOINT else f"{p.snapshot} ({p.kind.value})",
            Text(p.status, style=colour),
            human_ms(p.duration_ms) if p.duration_ms else "–",
            *((human_bytes(p.bytes_new), human_bytes(p.bytes_total), f"{p.rows_in_flight:,}") if done else ("–",) * 3),
        )
    return table


def phase_table(checkpoints: tuple[Progress, ...]) -> Table | None:
    """Where the time of complete checkpoints went, one line each: the phases of the slowest stage and the manifest,
    which together are the time that it took. None if there is none to show."""
    shown = [p for p in checkpoints if p.status == "complete" and p.slowest]
    if not shown:
        return None
    table = _table("id")
    names = shown_phases(*(p.phases for p in shown))
    for name in ("took", *names):
        table.add_column(name.replace("_", " "), justify="right", no_wrap=True)
    table.add_column("slowest stage", overflow="ellipsis", no_wrap=True)
    for p in shown:
        figures = [human_phase(p.phases[name]) for name in names]
        table.add_row(str(p.snapshot), human_ms(p.duration_ms), *figures, p.slowest)
    return table


def shown_phases(*phases: Mapping[str, float]) -> list[str]:
    """The phases that are shown: those that most snapshots have, and others if one of these has something to show."""
    return [name for name in phases[0] if name not in _RARE_PHASES or any(each[name] >= 1 for each in phases)]


def reasons(status_of: Iterable[StageStatus], checkpoints: Iterable[Progress]) -> list[Text]:
    """Why a stage is not running, what it has left out, and why the newest checkpoint that failed did: sentences, below
    the tables."""
    stages = list(status_of)
    found = [Text(f"{s.uid}: {s.error}", style="red") for s in stages if s.error]
    found += [bad_files_line(s.uid, s.bad_files, s.latest_bad_files[-1]) for s in stages if s.latest_bad_files]
    failed = [p for p in checkpoints if p.reason]
    if failed:
        found.append(Text(f"{failed[-1].kind.value} {failed[-1].snapshot} failed: {failed[-1].reason}", style="red"))
    return found


def bad_files_line(uid: str, count: int, last: BadFileStatus) -> Text:
    """How many input files a stage has set aside, and the last of them."""
    many = f"{count:,} input files are" if count > 1 else "1 input file is"
    why = printable(f"{last.file}: {last.reason}").replace("\n", " ")
    return Text(f"{uid}: {many} set aside, the last one at {last.time}: {why}", style="yellow")


def doubts(sinks: Iterable[SinkStatus]) -> list[Text]:
    """What a complete snapshot names and sinks have not made visible yet, and why. Empty if all is well."""
    found = []
    for sink in sinks:
        if sink.error:
            parts = f"{sink.in_doubt} part(s) in doubt, " if sink.in_doubt else ""
            found.append(Text(f"sink {sink.sink}: {parts}{sink.failures} attempts failed: {sink.error}", style="red"))
        elif sink.in_doubt > 1:
            found.append(Text(f"sink {sink.sink}: {sink.in_doubt} parts in doubt", style="yellow"))
    return found


def broken(invariants: Iterable[InvariantStatus]) -> list[Text]:
    """Invariants that do not hold, or could not be evaluated. Empty if all is well."""
    wrong = [one for one in invariants if one.outcome in (Outcome.VIOLATED, Outcome.FAILED)]
    return [Text(one.sentence, style="red" if one.outcome == Outcome.VIOLATED else "yellow") for one in wrong]


def held_back(status: JobStatus) -> list[Text]:
    """What invariants hold back, since when, and how to go on. Empty if all is well."""
    if status.held is None:
        return []
    since = f" (since {status.held.since})" if status.held.since else ""
    return [Text(f"{explain_held(status.job, status.held)}{since}", style="bold red")]


def invariants_line(invariants: Sequence[InvariantStatus]) -> str:
    """How many hold, in a line."""
    holding = sum(one.outcome == Outcome.HOLDS for one in invariants)
    skipped = sum(one.skipped for one in invariants)
    passed = f", {skipped} snapshots passed over" if skipped else ""
    return f"invariants: {holding} of {len(invariants)} hold{passed}"


def _count(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


def _table(first: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, overflow="ellipsis")
    return table


class _View(ABC):
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
            with contextlib.suppress(OSError):  # its output is on a full disk, or nobody reads it: the job goes on
                self.refresh(self._job.status(), count)
            count += 1

    @abstractmethod
    def refresh(self, status: JobStatus, count: int) -> None:
        """Show `status`; `count` is how many refreshes came before."""

    @abstractmethod
    def note(self, line: str) -> None:
        """A line of the log, beside what is shown."""


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
        shown = status.checkpoints[-_CHECKPOINTS:]
        why = [*reasons(status.stages, shown), *doubts(status.sinks), *broken(status.invariants), *held_back(status)]
        for text in why:
            text.truncate(2 * self._console.width, overflow="ellipsis")
        parts: list[RenderableType] = [
            head,
            Text(),
            stage_table(status.stages),
            Text(),
            checkpoint_table(shown),
            Text(),
            *((phases, Text()) if (phases := phase_table(shown)) is not None else ()),
            *why,
        ]
        self._live.update(Group(*parts), refresh=True)

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
                f"{s.uid} {s.state}, {f'batch {s.batch}' if s.batch >= 0 else 'no batch yet'}, "
                f"{s.rows_per_second:,.0f} rows/s{'' if s.lag_rows is None else f', lag {s.lag_rows:,}'}"
                for s in status.stages
            )
            self._say(f"{status.seconds:6.0f} s  {stages}")
            for text in (*doubts(status.sinks), *broken(status.invariants), *held_back(status)):
                self._say(text.plain)

    def note(self, line: str) -> None:
        self._say(line)

    def farewell(self, status: JobStatus) -> None:
        self.refresh(status, 1)
        self._say(_farewell(status))


def _line(p: Progress) -> str:
    if p.status == "failed":
        return f"{p.kind.value} {p.snapshot} failed after {human_ms(p.duration_ms)}: {p.reason}"
    phases = ", ".join(f"{name.replace('_', ' ')} {human_phase(p.phases[name])}" for name in shown_phases(p.phases))
    return (
        f"{p.kind.value} {p.snapshot} complete in {human_ms(p.duration_ms)}: {phases}; slowest stage {p.slowest}; "
        f"new {human_bytes(p.bytes_new)} of {human_bytes(p.bytes_total)}, {p.rows_in_flight:,} rows in flight"
    )


def _farewell(status: JobStatus) -> str:
    resume = ". The same command resumes it." if status.state == "stopped" else ""
    said = f"job {status.job} is {status.state} after {status.seconds:.0f} s; checkpoints complete: {status.completed}"
    return said + resume

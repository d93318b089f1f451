"""The options `--metrics`, `--otel` and `--notify`, for every command that runs something.

Everything is checked and opened before anything is started, so that a port in use or a missing package is said at once.
The packages are imported when they are asked for.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from strobe.hosts.spark.home.job_state import JobState
from strobe.model.invariants import Outcome, Verdict

if TYPE_CHECKING:
    from strobe.hosts.live.coordinator.outcomes import CheckMade
    from strobe.hosts.live.coordinator.outcomes import Event as LiveEvent
    from strobe.hosts.live.system.report import Report
    from strobe.hosts.spark.job.job import Job
    from strobe.hosts.spark.job.observer import Event
    from strobe.telemetry.live_traces import LiveTraces
    from strobe.telemetry.traces import Traces

__all__ = ["Watchers", "Watching", "watching_options"]

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Watching:
    """What was asked for."""

    metrics: str | None = None
    otel: bool = False
    notify: tuple[str, ...] = ()


def watching_options(function: Function) -> Function:
    """The options, handed over as `watching`."""

    @functools.wraps(function)
    def command(*args: Any, metrics: str | None, otel: bool, notify: tuple[str, ...], **named: Any) -> Any:
        return function(*args, watching=Watching(metrics, otel, notify), **named)

    metrics = click.option(
        "--metrics", metavar="[HOST:]PORT", help="Serve metrics for Prometheus there; on loopback without HOST."
    )
    otel = click.option(
        "--otel", is_flag=True, help="Send traces of snapshots (and batches) by OTLP, as OTEL_* variables say."
    )
    notify = click.option(
        "--notify",
        multiple=True,
        metavar="URL|COMMAND",
        help="Tell of failures and violated invariants: POST to a URL, or a command's standard input. May be repeated.",
    )
    return metrics(otel(notify(command)))  # type: ignore[return-value]


class Watchers:
    """Opened before anything starts, closed after everything has ended."""

    def __init__(self, watching: Watching, name: str, *, live: bool = False) -> None:
        """`live`: what runs is a system of processes, not a job."""
        self._name = name
        self._live = live
        self._close = contextlib.ExitStack()
        self.url: str | None = None
        self._told: set[tuple[str, Outcome]] = set()  # invariants and outcomes that were reported already
        self._found: set[str] = set()  # checks that were reported already
        self._traces: Traces | None = None
        self._live_traces: LiveTraces | None = None
        try:
            self._open(watching)
        except BaseException:
            self._close.close()
            raise

    def _open(self, watching: Watching) -> None:
        self._server = self._notifier = None
        if watching.notify:
            from strobe.telemetry.notify import Notifier, read_secret, target

            secret = read_secret(os.environ)
            self._notifier = Notifier([target(each, secret) for each in watching.notify])
            self._close.callback(self._notifier.stop)
        if watching.otel:
            from strobe.telemetry.spans import check_settings

            if check_settings(os.environ):
                self._open_traces()
        if watching.metrics is not None:
            from strobe.telemetry.exposition import Address, MetricsServer

            self._server = MetricsServer(Address.of(watching.metrics))
            self.url = self._server.url
            self._close.callback(self._server.stop)

    def _open_traces(self) -> None:
        if self._live:
            from strobe.telemetry.live_traces import LiveTraces

            self._live_traces = LiveTraces(self._name)
            self._close.callback(self._live_traces.stop)
        else:
            from strobe.telemetry.traces import Traces

            self._traces = Traces(self._name)
            self._close.callback(self._traces.stop)

    def __enter__(self) -> Watchers:
        return self

    def __exit__(self, *_: object) -> None:
        self._close.close()

    def watch_job(self, job: Job) -> None:
        if self._server is not None:
            from strobe.telemetry.job_metrics import job_families

            self._server.source = lambda: job_families(job.status())
        if self._traces is not None:
            job.observer.subscribe(self._traces.hear)
        if self._notifier is not None:
            job.observer.subscribe(self._hear)

    def watch_system(self, report: Report) -> None:
        """The newest report of a live system."""
        if self._server is not None:
            from strobe.telemetry.live_metrics import system_families

            families = system_families(report)
            self._server.source = lambda: families

    def hear_system(self, event: LiveEvent) -> None:
        """Called with what happens in a live system."""
        from strobe.hosts.live.coordinator.outcomes import CheckMade, InvariantJudged, NodeDied, SnapshotEnded

        if self._live_traces is not None:
            self._live_traces.hear(event)
        if isinstance(event, InvariantJudged):
            self._judged(event.verdict, holds_back=False)
        elif isinstance(event, CheckMade):
            self._checked(event)
        elif isinstance(event, NodeDied):
            self.tell("node.died", f"node {event.node}: {event.reason}", node=event.node, incarnation=event.incarnation)
        elif isinstance(event, SnapshotEnded) and event.manifest is None:
            self.tell(
                f"{event.kind.value}.failed", event.reason, snapshot=int(event.snapshot),
                duration_ms=round(event.duration_ms), started=event.started,
            )  # fmt: skip

    def job_ended(self, job: Job) -> None:
        if job.state is JobState.FAILED:
            self.tell("job.failed", job.error, incarnation=job.home.record.incarnation)

    def tell(self, type: str, message: str, **details: Any) -> None:
        """Notify those who have asked for it."""
        if self._notifier is not None:
            from strobe.telemetry.notify import Notice

            self._notifier.tell(Notice(type, self._name, message, details))

    def _hear(self, event: Event) -> None:
        from strobe.hosts.spark.job.observer import InvariantJudged, RowsReleased, SnapshotEnded

        if isinstance(event, InvariantJudged):
            self._judged(event.verdict, holds_back=event.holds_back)
        if isinstance(event, RowsReleased):
            done = event.release
            self.tell(
                "rows.released",
                f"what was held up to snapshot {done.snapshot}, {done.parts} part(s), is released by {done.by}",
                snapshot=int(done.snapshot), parts=done.parts, by=done.by, released=done.at,
            )  # fmt: skip
        if isinstance(event, SnapshotEnded) and event.progress.status == "failed":
            progress = event.progress
            self.tell(
                f"{progress.kind.value}.failed", progress.reason, snapshot=int(progress.snapshot),
                duration_ms=round(progress.duration_ms), started=progress.started,
            )  # fmt: skip

    def _checked(self, made: CheckMade) -> None:
        """Report it once, until a snapshot no longer shows it."""
        if made.found is False:
            self._found.discard(made.check)
        elif made.found and made.check not in self._found:
            self._found.add(made.check)
            self.tell(
                "check.found", made.sentence, check=made.check, snapshot=made.snapshot, lines=list(made.details)
            )  # fmt: skip

    def _judged(self, verdict: Verdict, *, holds_back: bool) -> None:
        """Report each problem once, until the invariant holds again: otherwise every checkpoint would send a
        message."""
        name, outcome = verdict.invariant, verdict.outcome
        if outcome is Outcome.HOLDS:
            self._told = {told for told in self._told if told[0] != name}
        if outcome not in (Outcome.VIOLATED, Outcome.FAILED) or (name, outcome) in self._told:
            return
        self._told.add((name, outcome))
        held = f"; the rows of snapshot {verdict.snapshot} and of later ones are held" if holds_back else ""
        more: dict[str, Any] = {"why": verdict.why}
        if outcome is Outcome.VIOLATED:
            more = {"count": verdict.count, "rows": [dict(row) for row in verdict.rows]}
        self.tell(
            f"invariant.{outcome.value}", verdict.sentence + held,
            invariant=name, snapshot=int(verdict.snapshot), held=holds_back, **more,
        )  # fmt: skip

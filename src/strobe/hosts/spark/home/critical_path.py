"""Where the time of a snapshot went: from its trigger to its end, without a gap, who was waited for.

A stage's part passes through phases (`NodeRecord.phases`). In some of them it only waits: a barrier has to come to it,
which a stage before it places when its own sync is done. So the way back is: begin with the stage whose part came last;
of what it reads, find the barrier that was placed last. What lies before that moment is the time of the stage that
placed it, what lies after it is this stage's own. The same again for that stage, until one is reached that reads no
channel.

If all stages were told to start, no barrier has to come to a stage before it is recorded: what passes until then is its
own time. Only after that it may wait for the barriers of the stages that it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strobe.hosts.spark.home.history import PastSnapshot
from strobe.model.graph import Graph

__all__ = ["MANIFEST", "Span", "critical_path", "missing_parts", "spans_of", "stuck_at"]

MANIFEST = "manifest"
_UNTIL_BARRIER = ("start_delay", "alignment", "sync")  # then the stage's own barrier is in its channel


@dataclass(frozen=True, slots=True)
class Span:
    """Milliseconds since the trigger. `channel` is the one whose barrier came last, if that is known. The manifest is
    everybody's: its `stage` is empty."""

    stage: str
    phase: str
    begin: float
    end: float
    channel: str = ""

    @property
    def took(self) -> float:
        return self.end - self.begin


def spans_of(stage: str, phases: Mapping[str, float]) -> tuple[Span, ...]:
    """The phases of one part, one after the other."""
    spans, now = [], 0.0
    for phase, took in phases.items():
        spans.append(Span(stage, phase, now, now + took))
        now += took
    return tuple(spans)


def critical_path(past: PastSnapshot, graph: Graph | None) -> tuple[Span, ...]:
    """What the end was waiting for, from the trigger on; empty if it was not measured. Without a graph all of it is the
    slowest stage's."""
    slowest = past.stages.get(past.slowest)
    if slowest is None or not slowest.phases:
        return ()
    path = _until(past, _producers(graph), past.slowest, None, frozenset())
    all_parts = sum(slowest.phases.values())
    manifest = past.phases.get(MANIFEST, 0.0)
    spans = [*path, Span("", MANIFEST, all_parts, all_parts + manifest)]
    return tuple(span for span in spans if span.took > 0)


def missing_parts(past: PastSnapshot, graph: Graph | None) -> tuple[str, ...]:
    """The stages whose parts had not come when the snapshot failed."""
    return () if graph is None else tuple(str(node) for node in graph.nodes if node not in past.stages)


def stuck_at(past: PastSnapshot, graph: Graph | None) -> tuple[str, ...]:
    """Of those the ones that wait for none of the others: the barrier had come to them, or they place the first."""
    missing, producers = missing_parts(past, graph), _producers(graph)
    return tuple(stage for stage in missing if not any(p in missing for p in producers.get(stage, ())))


def _producers(graph: Graph | None) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for channel in () if graph is None else graph.channels:
        if not channel.feedback:
            found.setdefault(channel.target, []).append(channel.source)
    return {stage: tuple(dict.fromkeys(of)) for stage, of in found.items()}


def _until(
    past: PastSnapshot,
    producers: Mapping[str, tuple[str, ...]],
    stage: str,
    until: tuple[str, ...] | None,
    behind: frozenset[str],
) -> list[Span]:
    """The path to the end of a stage's part, or to its barrier if `until` names the phases up to there."""
    phases = {p: ms for p, ms in past.stages[stage].phases.items() if until is None or p in until}
    placed = {
        producer: sum(past.stages[producer].phases.get(phase, 0.0) for phase in _UNTIL_BARRIER)
        for producer in producers.get(stage, ())
        if producer in past.stages and producer not in behind | {stage}
    }
    spans = spans_of(stage, phases)
    last = max(placed, key=lambda producer: placed[producer], default="")
    recorded = sum(phases.get(phase, 0.0) for phase in _UNTIL_BARRIER)
    if not last or (past.everywhere and (until is not None or placed[last] <= recorded)):
        return list(spans)
    # Two stages' clocks are one, but their figures are taken one after the other: a barrier cannot have come later than
    # this stage's last wait ended.
    waited = max(
        (span.end for span in spans if span.phase in ("start_delay", "alignment", "channels") and span.took),
        default=0.0,
    )
    came = min(placed[last], waited)
    before = [
        Span(s.stage, s.phase, s.begin, min(s.end, came), s.channel)
        for s in _until(past, producers, last, _UNTIL_BARRIER, behind | {stage})
        if s.begin < came
    ]
    own = [Span(stage, s.phase, max(s.begin, came), s.end, last) for s in spans if s.end > came]
    return before + own

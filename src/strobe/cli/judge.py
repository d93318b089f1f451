"""A verdict on a journal: what the verifier, the proof and the workload's invariant say, in words and as JSON.

`strobe sim run` and `strobe sim verify` print it in the same form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from strobe.cli.figures import plural
from strobe.cli.output import Session
from strobe.model.app import Application
from strobe.model.cut import Cut, Json
from strobe.model.events import Completed
from strobe.verify.consistency import Checked, Report, check_journal
from strobe.verify.history import History
from strobe.verify.journal import Journal
from strobe.verify.reachability import Proof, prove

__all__ = ["Judged", "Judgement", "judge", "print_judgement"]

_SENTENCES = 8
"""How many violations are printed; the JSON has all."""


@dataclass(frozen=True)
class Judged:
    """One complete snapshot."""

    cut: Cut
    checked: Checked
    proof: Proof | None
    """None if it was not proved."""
    invariant: str | None
    """How the workload's invariant is broken; None if it holds."""

    @property
    def ok(self) -> bool:
        return self.checked.violations == 0 and self.invariant is None and (self.proof is None or self.proof.holds)

    def to_json(self) -> dict[str, Json]:
        proof = self.proof
        return {
            "snapshot": self.cut.snapshot,
            "incarnation": self.checked.incarnation,
            "consistent": self.checked.violations == 0,
            "in_flight": self.checked.in_flight,
            "markers": self.checked.markers,
            "invariant": self.invariant,
            "proof": None
            if proof is None
            else {
                "holds": proof.holds,
                "sentence": proof.sentence,
                "steps_before": proof.cut,
                "steps_after": len(proof.order) - proof.cut,
                "moved": proof.moved,
                "exchanges": proof.swaps,
            },
        }


@dataclass(frozen=True)
class Judgement:
    journal: Journal
    report: Report
    snapshots: tuple[Judged, ...]
    has_invariant: bool

    @property
    def ok(self) -> bool:
        return self.report.ok and all(judged.ok for judged in self.snapshots)

    def to_json(self) -> dict[str, Json]:
        header = self.journal.header
        return {
            "ok": self.ok,
            "host": header.host,
            "workload": header.workload,
            "params": dict(header.params),
            "nodes": len(header.graph.nodes),
            "channels": len(header.graph.channels),
            "protocol": header.protocol,
            "order": header.order,
            "seed": header.seed,
            "events": self.report.events,
            "steps": self.report.steps,
            "messages": self.report.sent,
            "received": self.report.received,
            "lost": self.report.lost,
            "duplicated": self.report.duplicated,
            "markers": self.report.markers_sent,
            "incarnations": self.report.epochs,
            "unfinished": list(self.report.unfinished),
            "snapshots": [judged.to_json() for judged in self.snapshots],
            "violations": [violation.to_json() for violation in self.report.violations],
        }


def judge(
    journal: Journal, app: Application | None, check: Callable[[Cut], str | None] | None, *, cut_short: bool = False
) -> Judgement:
    """`app` is what the proof replays and `check` the workload's invariant; without them only the cuts are checked.
    `cut_short` as for `prove`."""
    history = History(journal)
    report = check_journal(history)

    def proof(cut: Cut) -> Proof | None:
        return prove(history, cut, app, cut_short=cut_short) if app is not None else None

    cuts = [event.cut for event in journal.events if isinstance(event, Completed)]
    judged = [
        Judged(cut, checked, proof(cut), _broken(check, cut) if check else None)
        for cut, checked in zip(cuts, report.snapshots, strict=True)
    ]
    judged.sort(key=lambda one: (one.checked.incarnation, one.cut.snapshot))
    return Judgement(journal, report, tuple(judged), check is not None)


def _broken(check: Callable[[Cut], str | None], cut: Cut) -> str | None:
    try:
        return check(cut)
    except Exception as error:  # a journal can hold any states, and the workload knows its own only
        return f"The invariant cannot be asked of these states: {type(error).__name__}: {error}."


# ── words ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def print_judgement(session: Session, judgement: Judgement) -> None:
    header, report = judgement.journal.header, judgement.report
    seed = "" if header.seed is None else f", seed {header.seed}"
    system = f"{plural(len(header.graph.nodes), 'node')}, {plural(len(header.graph.channels), 'channel')}"
    session.say((header.workload, "bold"), f": {system}, {header.protocol}, {header.order} channels{seed}")
    counts = [plural(report.events, "event"), plural(report.sent, "message"), plural(report.markers_sent, "marker")]
    counts += [
        f"{number:,} {what}" for number, what in ((report.lost, "lost"), (report.duplicated, "duplicated")) if number
    ]
    if report.epochs > 1:
        counts.append(plural(report.epochs - 1, "restart"))
    session.say(", ".join(counts))
    for judged in judgement.snapshots:
        session.say(*_line(judged, judgement.has_invariant))
    for snapshot in report.unfinished:
        session.say((f"snapshot {snapshot}", "bold"), ": never became complete")
    for sentence in _faults(judgement):
        session.say(("  ! ", "bold red"), sentence)


def _line(judged: Judged, has_invariant: bool) -> Iterator[str | tuple[str, str]]:
    yield f"snapshot {judged.cut.snapshot}", "bold"
    yield ": "
    yield ("not consistent", "bold red") if judged.checked.violations else ("consistent", "green")
    yield f", {plural(judged.checked.in_flight, 'message')} in flight"
    if has_invariant:
        yield ", "
        yield ("invariant broken", "bold red") if judged.invariant else ("invariant holds", "green")
    proof = judged.proof
    if proof is not None:
        yield ", "
        yield ("reachable", "green") if proof.holds else ("not reachable", "bold red")
        if proof.holds:
            after = len(proof.order) - proof.cut
            yield f" ({plural(proof.cut, 'step')} before, {after:,} after, {proof.moved:,} moved)"


def _faults(judgement: Judgement) -> Iterator[str]:
    violations = judgement.report.violations
    yield from (violation.sentence for violation in violations[:_SENTENCES])
    if len(violations) > _SENTENCES:
        yield f"And {plural(len(violations) - _SENTENCES, 'violation')} more; --json tells all."
    for judged in judgement.snapshots:
        if judged.invariant is not None:
            yield f"Snapshot {judged.cut.snapshot}: {judged.invariant}"
    yield from (one.proof.sentence for one in judgement.snapshots if one.proof is not None and not one.proof.holds)

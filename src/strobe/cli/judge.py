"""A verdict on a journal: what the verifier, the proof and the workload's invariant say, in words and as JSON.

`strobe sim run` and `strobe sim verify` tell it alike, so that a journal verified later reads like the run it is of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from strobe.cli.output import Session
from strobe.model.app import Application
from strobe.model.cut import Cut, Json
from strobe.model.events import Completed
from strobe.model.ids import SnapshotId
from strobe.verify.consistency import Report, check_journal
from strobe.verify.history import History
from strobe.verify.journal import Journal
from strobe.verify.reachability import Proof, prove

__all__ = ["Judgement", "judge", "plural", "print_judgement"]

_SENTENCES = 8
"""So many violations are told in words; the JSON has all."""


@dataclass(frozen=True)
class Judgement:
    journal: Journal
    report: Report
    cuts: Mapping[SnapshotId, Cut]
    proofs: Mapping[SnapshotId, Proof]
    """Empty when nobody could or would prove."""
    invariants: Mapping[SnapshotId, str | None]
    """What the workload says of each snapshot; None is well."""

    @property
    def ok(self) -> bool:
        return (
            self.report.ok
            and all(proof.holds for proof in self.proofs.values())
            and all(invariant is None for invariant in self.invariants.values())
        )

    def to_json(self) -> dict[str, Json]:
        header = self.journal.header
        checked = {c.snapshot: c for c in self.report.snapshots}
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
            "snapshots": [
                {
                    "snapshot": snapshot,
                    "consistent": checked[snapshot].violations == 0,
                    "in_flight": checked[snapshot].in_flight,
                    "markers": checked[snapshot].markers,
                    "invariant": self.invariants.get(snapshot),
                    "proof": _proof_json(self.proofs.get(snapshot)),
                }
                for snapshot in self.cuts
            ],
            "violations": [violation.to_json() for violation in self.report.violations],
        }


def _proof_json(proof: Proof | None) -> Json:
    if proof is None:
        return None
    after = len(proof.order) - proof.cut
    return {
        "holds": proof.holds, "sentence": proof.sentence, "steps_before": proof.cut, "steps_after": after,
        "moved": proof.moved, "exchanges": proof.swaps,
    }  # fmt: skip


def judge(journal: Journal, app: Application | None, check: Callable[[Cut], str | None] | None) -> Judgement:
    """`app` is what the proof replays and `check` the workload's invariant; without them only the cuts are checked."""
    history = History(journal)
    report = check_journal(history)
    cuts = {event.cut.snapshot: event.cut for event in journal.events if isinstance(event, Completed)}
    return Judgement(
        journal,
        report,
        cuts,
        {} if app is None else {snapshot: prove(history, cut, app) for snapshot, cut in cuts.items()},
        {} if check is None else {snapshot: check(cut) for snapshot, cut in cuts.items()},
    )


# ── words ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def plural(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


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
    for snapshot in judgement.cuts:
        session.say(*_line(judgement, snapshot))
    for snapshot in report.unfinished:
        session.say((f"snapshot {snapshot}", "bold"), ": never became complete")
    for sentence in _faults(judgement):
        session.say(("  ! ", "bold red"), sentence)


def _line(judgement: Judgement, snapshot: SnapshotId) -> Iterator[str | tuple[str, str]]:
    checked = next(c for c in judgement.report.snapshots if c.snapshot == snapshot)
    yield f"snapshot {snapshot}", "bold"
    yield ": "
    yield ("not consistent", "bold red") if checked.violations else ("consistent", "green")
    yield f", {plural(checked.in_flight, 'message')} in flight"
    if snapshot in judgement.invariants:
        yield ", "
        yield ("invariant broken", "bold red") if judgement.invariants[snapshot] else ("invariant holds", "green")
    proof = judgement.proofs.get(snapshot)
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
    for snapshot, invariant in judgement.invariants.items():
        if invariant is not None:
            yield f"Snapshot {snapshot}: {invariant}"
    yield from (proof.sentence for proof in judgement.proofs.values() if not proof.holds)

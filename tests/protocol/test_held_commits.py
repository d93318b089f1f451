"""Two-phase commit that waits for a verdict: every schedule with verdicts in any order and releases; and its mutants.

`commit_world.py` says what is checked: nothing becomes visible that is held, and nothing that may go stays behind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from strobe.model.errors import HostFault
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.protocol.two_phase_commit import TwoPhaseCoordinator
from strobe.protocol.two_phase_commit.coordinator import _Phase, _Transaction
from strobe.protocol.two_phase_commit.messages import (
    Begin,
    Commit,
    CommitCoordinatorEffect,
    Committed,
    Decision,
    DecisionLogged,
    Finding,
    Handle,
    InDoubt,
    Judge,
    Judged,
    LogDecision,
    Opened,
    Prepared,
    Released,
    Resolve,
    Resolved,
    Session,
    Settled,
    ToParticipant,
)
from tests.protocol.commit_world import P, Q, world
from tests.protocol.explorer import Violation, explore

ONE, TWO, THREE = SnapshotId(1), SnapshotId(2), SnapshotId(3)
S11 = Session(Incarnation(1), Incarnation(1))
H1, H2 = Handle("h1"), Handle("h2")
HOLDS, VIOLATED, POSTPONED = Finding.HOLDS, Finding.VIOLATED, Finding.POSTPONED
DECISION = Decision(ONE, ((P, (H1,)), (Q, (H2,))), judged=True)


# ── every schedule ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("finding", [HOLDS, VIOLATED, POSTPONED])
def test_a_crash_at_any_point_of_one_snapshot_shows_nothing_that_is_held(finding: Finding) -> None:
    assert explore(world(begins=1, crashes=1, findings=(finding,), releases=1)).states > 1_000


@pytest.mark.parametrize("findings", [(VIOLATED, HOLDS), (POSTPONED, HOLDS), (HOLDS, VIOLATED)])
def test_two_snapshots_overlap_and_their_verdicts_come_in_any_order(findings: tuple[Finding, ...]) -> None:
    assert explore(world(begins=2, findings=findings, releases=1)).states > 3_000


@pytest.mark.parametrize("finding", [HOLDS, VIOLATED, POSTPONED])
def test_everything_crashes_at_once_at_any_point_of_one_snapshot(finding: Finding) -> None:
    """Of two there are millions of states: too many for a test."""
    assert explore(world(begins=1, blackouts=1, findings=(finding,), releases=1)).states > 10_000


# ── mutants: one broken rule each ───────────────────────────────────────────────────────────────────────────────────


class CommitsBeforeTheVerdict(TwoPhaseCoordinator):
    def _decided_now(self, decision: Decision, waiting: frozenset[NodeId]) -> _Transaction:
        return _Transaction(_Phase.COMMITTING, decision, waiting)


class ForgetsAReleaseAtARestart(TwoPhaseCoordinator):
    def __init__(
        self,
        participants: Iterable[NodeId],
        incarnation: Incarnation,
        *,
        decisions: Iterable[Decision] = (),
        judges: bool = False,
        released: int = 0,
    ) -> None:
        super().__init__(participants, incarnation, decisions=decisions, judges=judges)


class ForgetsAtARestartThatItWaits(TwoPhaseCoordinator):
    """Takes what the log names for what may go."""

    def __init__(
        self,
        participants: Iterable[NodeId],
        incarnation: Incarnation,
        *,
        decisions: Iterable[Decision] = (),
        **rest: Any,
    ) -> None:
        super().__init__(participants, incarnation, decisions=[replace(d, judged=False) for d in decisions], **rest)


class HearsTheVerdictOnAnotherSnapshot(TwoPhaseCoordinator):
    """Takes any verdict for that on the oldest that waits."""

    def _judged(self, snapshot: SnapshotId, finding: Finding) -> tuple[CommitCoordinatorEffect, ...]:
        asked = [s for s, found in self.waiting if found is None]
        return super()._judged(asked[0] if asked else snapshot, finding)


class PassesOverAHeldOne(TwoPhaseCoordinator):
    """Lets a snapshot go that holds, and with it what an earlier one holds back."""

    def _let_go(self) -> tuple[CommitCoordinatorEffect, ...]:
        effects: tuple[CommitCoordinatorEffect, ...] = ()
        for snapshot, transaction in self._waiting():
            if snapshot <= self._passed or transaction.finding is Finding.HOLDS:
                self._set(snapshot, transaction._replace(phase=_Phase.COMMITTING))
                effects += self._commit(snapshot)
        return effects


class TakesAPostponedOneForOneThatHolds(TwoPhaseCoordinator):
    def _judged(self, snapshot: SnapshotId, finding: Finding) -> tuple[CommitCoordinatorEffect, ...]:
        return super()._judged(snapshot, HOLDS if finding is POSTPONED else finding)


class AbortsWhatIsHeld(TwoPhaseCoordinator):
    """Takes what has not been let go for what was never decided."""

    def _is_named(self, name: NodeId, handle: Handle) -> bool:
        return self._may_commit(name, handle)


class AsksOnce(TwoPhaseCoordinator):
    """After a restart, waits for a verdict that nobody was asked for."""

    def step(self, input: Any) -> tuple[CommitCoordinatorEffect, ...]:
        effects = super().step(input)
        return tuple(e for e in effects if not isinstance(e, Judge)) if isinstance(input, Opened) else effects


ONE_CRASH: dict[str, Any] = {"begins": 1, "crashes": 1}
COORDINATORS: list[tuple[type[TwoPhaseCoordinator], dict[str, Any], str]] = [
    (CommitsBeforeTheVerdict, {"begins": 1, "findings": (VIOLATED,)}, "is held"),
    (ForgetsAReleaseAtARestart, {**ONE_CRASH, "findings": (VIOLATED,), "releases": 1}, "never committed"),
    (ForgetsAtARestartThatItWaits, {**ONE_CRASH, "findings": (VIOLATED,)}, "is held"),
    (HearsTheVerdictOnAnotherSnapshot, {"begins": 2, "findings": (VIOLATED, HOLDS)}, "is held|not to be judged"),
    (PassesOverAHeldOne, {"begins": 2, "findings": (VIOLATED, HOLDS)}, "is held"),
    (TakesAPostponedOneForOneThatHolds, {"begins": 1, "findings": (POSTPONED,)}, "is held"),
    (AbortsWhatIsHeld, {**ONE_CRASH, "findings": (VIOLATED,)}, "was aborted, but a logged decision names it"),
    (AsksOnce, {**ONE_CRASH, "findings": (HOLDS,)}, "never committed"),
]


@pytest.mark.parametrize(("mutant", "size", "rule"), COORDINATORS, ids=lambda x: getattr(x, "__name__", ""))
def test_the_check_catches_a_coordinator_that(
    mutant: type[TwoPhaseCoordinator], size: dict[str, Any], rule: str
) -> None:
    with pytest.raises(Violation, match=rule):
        explore(world(**size, coordinator=mutant))


# ── single rules ────────────────────────────────────────────────────────────────────────────────────────────────────


def a_coordinator() -> TwoPhaseCoordinator:
    """Both participants have reported that nothing is prepared."""
    machine = TwoPhaseCoordinator((P, Q), Incarnation(1), judges=True)
    machine.step(Opened())
    for name in (P, Q):
        machine.step(InDoubt(name, S11, (), keeps=True))
        machine.step(Resolved(name, S11))
    return machine


def decide(
    machine: TwoPhaseCoordinator, snapshot: SnapshotId, p: tuple[Handle, ...], q: tuple[Handle, ...]
) -> tuple[CommitCoordinatorEffect, ...]:
    machine.step(Begin(snapshot))
    machine.step(Prepared(P, S11, snapshot, p))
    machine.step(Prepared(Q, S11, snapshot, q))
    return machine.step(DecisionLogged(snapshot))


def test_the_logged_decision_says_that_it_waits_and_the_verdict_is_asked_for() -> None:
    machine = a_coordinator()
    machine.step(Begin(ONE))
    machine.step(Prepared(P, S11, ONE, (H1,)))
    assert machine.step(Prepared(Q, S11, ONE, (H2,))) == (LogDecision(DECISION),)
    assert machine.step(DecisionLogged(ONE)) == (Judge(ONE),)
    assert machine.waiting == ((ONE, None),)


def test_commits_follow_a_verdict_that_it_holds() -> None:
    machine = a_coordinator()
    decide(machine, ONE, (H1,), (H2,))
    assert machine.step(Judged(ONE, HOLDS)) == (
        ToParticipant(P, Commit(S11, ONE, (H1,))),
        ToParticipant(Q, Commit(S11, ONE, (H2,))),
    )
    machine.step(Committed(P, S11, ONE))
    assert machine.step(Committed(Q, S11, ONE)) == (Settled(ONE),)


def test_one_that_holds_waits_behind_one_that_is_held_and_goes_with_its_release() -> None:
    machine = a_coordinator()
    decide(machine, ONE, (H1,), ())
    assert machine.step(Judged(ONE, VIOLATED)) == ()
    decide(machine, TWO, (H1, H2), ())
    assert machine.step(Judged(TWO, HOLDS)) == ()
    assert machine.waiting == ((ONE, VIOLATED), (TWO, HOLDS))
    commits = [e.message for e in machine.step(Released(ONE)) if isinstance(e, ToParticipant) and e.participant == P]
    assert commits == [Commit(S11, ONE, (H1,)), Commit(S11, TWO, (H1, H2))]


def test_a_release_lets_go_what_is_held_up_to_it_and_nothing_later() -> None:
    machine = a_coordinator()
    decide(machine, ONE, (H1,), ())
    machine.step(Judged(ONE, VIOLATED))
    decide(machine, TWO, (H1, H2), ())
    machine.step(Judged(TWO, VIOLATED))
    machine.step(Released(ONE))
    assert machine.waiting == ((TWO, VIOLATED),)
    with pytest.raises(HostFault, match="it is not complete"):
        machine.step(Released(THREE))


def test_a_snapshot_that_names_nothing_new_shares_the_fate_of_the_one_that_is_held() -> None:
    machine = a_coordinator()
    decide(machine, ONE, (H1,), ())
    machine.step(Judged(ONE, VIOLATED))
    assert decide(machine, TWO, (H1,), ()) == ()
    assert decide(machine, THREE, (H1,), ()) == ()
    assert machine.needed == {ONE, THREE}, "the first that names it, and the newest"
    machine.step(Released(ONE))
    assert machine.waiting == ()


def test_one_that_cannot_be_asked_goes_with_the_next_that_holds() -> None:
    machine = a_coordinator()
    decide(machine, ONE, (H1,), ())
    assert machine.step(Judged(ONE, POSTPONED)) == ()
    assert decide(machine, TWO, (H1,), ()) == (Judge(TWO),), "it speaks for both"
    assert len(machine.step(Judged(TWO, HOLDS))) == 4


def test_a_snapshot_without_parts_needs_no_verdict() -> None:
    machine = a_coordinator()
    effects = decide(machine, ONE, (), ())
    assert all(isinstance(e, ToParticipant) and isinstance(e.message, Commit) for e in effects)


def test_a_verdict_that_comes_after_the_release_changes_nothing() -> None:
    machine = a_coordinator()
    decide(machine, ONE, (H1,), (H2,))
    machine.step(Released(ONE))
    assert machine.step(Judged(ONE, VIOLATED)) == ()


@pytest.mark.parametrize("verdict", [Judged(ONE, HOLDS), Judged(TWO, HOLDS)])
def test_a_verdict_that_nobody_asked_for_is_the_hosts_fault(verdict: Judged) -> None:
    machine = a_coordinator()
    decide(machine, ONE, (H1,), (H2,))
    machine.step(Judged(ONE, VIOLATED))
    before = machine.key()
    with pytest.raises(HostFault, match="not to be judged"):
        machine.step(verdict)
    assert machine.key() == before


def test_a_restarted_coordinator_asks_again_and_keeps_back_what_waits() -> None:
    machine = TwoPhaseCoordinator((P, Q), Incarnation(2), decisions=[DECISION], judges=True)
    assert Judge(ONE) in machine.step(Opened())
    session = Session(Incarnation(2), Incarnation(2))
    answer = machine.step(InDoubt(P, session, (H1,), keeps=False))
    assert answer == (ToParticipant(P, Resolve(session, commit=(), abort=(), snapshot=ONE)),)
    machine.step(Resolved(P, session))
    assert machine.step(Judged(ONE, HOLDS)) == (ToParticipant(P, Commit(session, ONE, (H1,))),), "q is not back yet"
    answer = machine.step(InDoubt(Q, session, (H2,), keeps=False))
    assert answer == (ToParticipant(Q, Resolve(session, commit=(H2,), abort=(), snapshot=ONE)),)


def test_a_restarted_coordinator_remembers_a_release() -> None:
    machine = TwoPhaseCoordinator((P, Q), Incarnation(2), decisions=[DECISION], judges=True, released=ONE)
    assert Judge(ONE) not in machine.step(Opened())
    session = Session(Incarnation(2), Incarnation(2))
    answer = machine.step(InDoubt(P, session, (H1,), keeps=True))
    assert answer == (ToParticipant(P, Resolve(session, commit=(H1,), abort=(), snapshot=ONE)),)


def test_what_one_sink_has_made_visible_in_an_earlier_life_the_other_makes_visible_too() -> None:
    machine = TwoPhaseCoordinator((P, Q), Incarnation(2), decisions=[DECISION], judges=True)
    machine.step(Opened())
    session = Session(Incarnation(2), Incarnation(2))
    machine.step(InDoubt(P, session, (), keeps=True))  # it has forgotten h1
    answer = machine.step(InDoubt(Q, session, (H2,), keeps=True))
    assert ToParticipant(Q, Resolve(session, commit=(H2,), abort=(), snapshot=ONE)) in answer
    assert machine.step(Judged(ONE, VIOLATED)) == (), "too late: some of it was visible"

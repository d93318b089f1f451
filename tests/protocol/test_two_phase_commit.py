"""Two-phase commit: every schedule of one coordinator and two sinks, with a crash at every point; and its mutants.

`commit_world.py` says what is checked at each commit and abort, and at rest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from strobe.model.errors import HostFault, PeerFault
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.protocol.restore.messages import StandDown
from strobe.protocol.two_phase_commit import TwoPhaseCoordinator, TwoPhaseParticipant
from strobe.protocol.two_phase_commit.coordinator import _Transaction
from strobe.protocol.two_phase_commit.messages import (
    Abandon,
    Abandoned,
    AbortWrites,
    Ask,
    Begin,
    Commit,
    CommitCoordinatorEffect,
    CommitParticipantEffect,
    Committed,
    CommitWrites,
    Decision,
    DecisionFailed,
    DecisionLogged,
    Handle,
    Hello,
    InDoubt,
    LogDecision,
    Opened,
    Prepare,
    Prepared,
    PrepareWrites,
    RecoverFrom,
    Refused,
    Resolve,
    Resolved,
    Session,
    Settled,
    ToCoordinator,
    ToParticipant,
    WritesPrepared,
)
from tests.protocol.commit_world import P, Q, world
from tests.protocol.explorer import Violation, explore

ONE, TWO = SnapshotId(1), SnapshotId(2)
S11 = Session(Incarnation(1), Incarnation(1))
H1, H2 = Handle("h1"), Handle("h2")


# ── every schedule ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_crash_at_any_point_of_one_snapshot_leaves_every_row_visible_once() -> None:
    start = world(begins=1, crashes=1, failures=1)
    explored = explore(start)
    assert explored.states > 5_000
    assert start.repeated, "no schedule committed a handle twice: the check is weaker than it says"


def test_everything_crashes_at_once_at_any_point_of_one_snapshot() -> None:
    assert explore(world(begins=1, blackouts=1, failures=1)).states > 20_000


def test_two_snapshots_overlap_in_any_order_and_one_of_them_may_fail() -> None:
    assert explore(world(begins=2, crashes=0, failures=1)).states > 5_000


def test_a_cold_start_in_any_order_of_greetings() -> None:
    assert explore(world(begins=1, crashes=0, cold=True)).states > 3_000


@pytest.mark.slow
def test_a_crash_at_any_point_of_two_overlapping_snapshots() -> None:
    assert explore(world(begins=2, crashes=1)).states > 150_000


@pytest.mark.slow
def test_two_crashes_at_any_two_points_of_one_snapshot() -> None:
    assert explore(world(begins=1, crashes=2)).states > 100_000


# ── mutants: one broken rule each ───────────────────────────────────────────────────────────────────────────────────


class CommitsBeforeTheLog(TwoPhaseCoordinator):
    def _all_voted(self, snapshot: SnapshotId) -> tuple[CommitCoordinatorEffect, ...]:
        effects = super()._all_voted(snapshot)
        early = [e.decision for e in effects if isinstance(e, LogDecision)]
        return effects + tuple(
            ToParticipant(p, Commit(self._session(p), snapshot, d.of(p))) for d in early for p in self.participants
        )


class RestoresTheSnapshotBefore(TwoPhaseCoordinator):
    """The mistake of a tutorial: after a crash between prepare and commit, go back to N−1 and abort N."""

    def __init__(self, participants: tuple[NodeId, ...], incarnation: Incarnation, *, decisions: object = ()) -> None:
        assert isinstance(decisions, tuple)
        super().__init__(participants, incarnation, decisions=decisions[:-1])


class CommitsWhateverIsPrepared(TwoPhaseCoordinator):
    """Presumes commit."""

    def _may_commit(self, name: NodeId, handle: Handle) -> bool:
        return True


class AnswersWhileLogging(TwoPhaseCoordinator):
    def _is_logging(self) -> bool:
        return False


class ForgetsBeforeTheAcknowledgements(TwoPhaseCoordinator):
    def _settle(self, snapshot: SnapshotId) -> tuple[CommitCoordinatorEffect, ...]:
        transaction = self._open[snapshot]
        self._set(snapshot, transaction._replace(waiting=frozenset()))
        return super()._settle(snapshot)

    def _acknowledge(self, name: NodeId, snapshots: frozenset[SnapshotId]) -> tuple[CommitCoordinatorEffect, ...]:
        return super()._acknowledge(name, frozenset(s for s in snapshots if s in self._open))

    def step(self, input: object) -> tuple[CommitCoordinatorEffect, ...]:
        if isinstance(input, Committed):
            return ()
        return super().step(input)  # type: ignore[arg-type]


class CountsALostVote(TwoPhaseCoordinator):
    """A participant went back to before its vote, and the vote still counts."""

    def _vote_stands(self, transaction: _Transaction, report: InDoubt) -> bool:
        return report.participant not in transaction.waiting


class WaitsForAVoteThatCannotCome(TwoPhaseCoordinator):
    def _vote_stands(self, transaction: _Transaction, report: InDoubt) -> bool:
        return report.participant in transaction.waiting or super()._vote_stands(transaction, report)


class HearsOldParticipants(TwoPhaseCoordinator):
    def _is_stale(self, session: Session, name: NodeId) -> bool:
        return False


class HearsAnswersToOldCoordinators(TwoPhaseCoordinator):
    def _message(self, message: Any) -> tuple[CommitCoordinatorEffect, ...]:
        if isinstance(message, Prepared):
            message = replace(message, session=Session(self.incarnation, message.session.participant))
        return super()._message(message)


class AbortsWhatIsKept(TwoPhaseCoordinator):
    """Aborts what no decision names, even if nobody will write it again."""

    def _report(self, report: InDoubt) -> tuple[CommitCoordinatorEffect, ...]:
        return super()._report(InDoubt(report.participant, report.session, report.handles, keeps=False))


class NeverAnswers(TwoPhaseCoordinator):
    def _answer(self) -> tuple[CommitCoordinatorEffect, ...]:
        return ()


class VotesBeforeItIsDurable(TwoPhaseParticipant):
    def _prepare(self, snapshot: SnapshotId) -> tuple[CommitParticipantEffect, ...]:
        effects = super()._prepare(snapshot)
        if not any(isinstance(e, PrepareWrites) for e in effects):
            return effects
        soon = Handle(f"{self.name}1.{self.incarnation}")
        return (*effects, ToCoordinator(Prepared(self.name, self._session(), snapshot, (*self._prepared, soon))))

    def _writes_prepared(self, snapshot: SnapshotId, handle: Handle | None) -> tuple[CommitParticipantEffect, ...]:
        return tuple(
            e
            for e in super()._writes_prepared(snapshot, handle)
            if not (isinstance(e, ToCoordinator) and isinstance(e.message, Prepared))
        )


class AcknowledgesBeforeItCommits(TwoPhaseParticipant):
    def _message(self, message: Resolve | Prepare | Commit) -> tuple[CommitParticipantEffect, ...]:
        effects = super()._message(message)
        return tuple(sorted(effects, key=lambda e: not isinstance(e, ToCoordinator)))


class VotesForTheNewestOnly(TwoPhaseParticipant):
    """Names only what this snapshot prepared: what an abandoned one prepared is forgotten."""

    def _writes_prepared(self, snapshot: SnapshotId, handle: Handle | None) -> tuple[CommitParticipantEffect, ...]:
        def newest(effect: CommitParticipantEffect) -> CommitParticipantEffect:
            if isinstance(effect, ToCoordinator) and isinstance(effect.message, Prepared):
                vote = effect.message
                return ToCoordinator(Prepared(vote.participant, vote.session, vote.snapshot, vote.handles[-1:]))
            return effect

        return tuple(newest(e) for e in super()._writes_prepared(snapshot, handle))


class RefusesToCommitTwice(TwoPhaseParticipant):
    def _commit(self, handles: tuple[Handle, ...]) -> tuple[CommitParticipantEffect, ...]:
        if any(h not in self._prepared for h in handles):
            raise PeerFault(f"{handles} are not prepared here.")
        return super()._commit(handles)


ONE_CRASH = {"begins": 1, "crashes": 1}
BLACKOUT = {"begins": 1, "blackouts": 1}
COORDINATORS = [
    (CommitsBeforeTheLog, ONE_CRASH, "no logged decision names it"),
    (RestoresTheSnapshotBefore, BLACKOUT, "was aborted, but a logged decision names it"),
    (CommitsWhateverIsPrepared, ONE_CRASH, "no logged decision names it"),
    (AnswersWhileLogging, ONE_CRASH, "aborted"),
    (ForgetsBeforeTheAcknowledgements, ONE_CRASH, "was aborted, but a logged decision names it"),
    (CountsALostVote, ONE_CRASH, "was aborted, but a logged decision names it"),
    (WaitsForAVoteThatCannotCome, ONE_CRASH, "never forgot"),
    (HearsOldParticipants, ONE_CRASH, "not owed|not asked for"),
    (HearsAnswersToOldCoordinators, {"begins": 2, "crashes": 1}, "a second time|never committed|never begun"),
    (AbortsWhatIsKept, ONE_CRASH, "will not be written again"),
    (NeverAnswers, ONE_CRASH, "in doubt"),
]
PARTICIPANTS = [
    (VotesBeforeItIsDurable, ONE_CRASH, "never committed"),
    (AcknowledgesBeforeItCommits, ONE_CRASH, "never committed|was aborted, but a logged decision names it"),
    (VotesForTheNewestOnly, {"begins": 2, "crashes": 0, "failures": 1}, "ahead of|before an earlier one"),
    (RefusesToCommitTwice, {"begins": 2, "crashes": 0}, "are not prepared here"),
]


@pytest.mark.parametrize(("mutant", "size", "rule"), COORDINATORS, ids=lambda x: getattr(x, "__name__", ""))
def test_the_check_catches_a_coordinator_that(
    mutant: type[TwoPhaseCoordinator], size: dict[str, int], rule: str
) -> None:
    with pytest.raises(Violation, match=rule):
        explore(world(**size, coordinator=mutant))  # type: ignore[arg-type]


@pytest.mark.parametrize(("mutant", "size", "rule"), PARTICIPANTS, ids=lambda x: getattr(x, "__name__", ""))
def test_the_check_catches_a_participant_that(
    mutant: type[TwoPhaseParticipant], size: dict[str, int], rule: str
) -> None:
    with pytest.raises(Violation, match=rule):
        explore(world(**size, participant=mutant))  # type: ignore[arg-type]


# ── single rules ────────────────────────────────────────────────────────────────────────────────────────────────────


def a_coordinator(*decisions: Decision) -> TwoPhaseCoordinator:
    """Both participants have reported that nothing is prepared."""
    machine = TwoPhaseCoordinator((P, Q), Incarnation(1), decisions=decisions)
    machine.step(Opened())
    for name in (P, Q):
        machine.step(InDoubt(name, S11, (), keeps=False))
        machine.step(Resolved(name, S11))
    return machine


def a_participant(*prepared: Handle, keeps: bool = True) -> TwoPhaseParticipant:
    """Its doubts are resolved: nothing was named."""
    machine = TwoPhaseParticipant(P, Incarnation(1), prepared=prepared, keeps=keeps)
    machine.step(Opened())
    machine.step(Ask(Incarnation(1)))
    machine.step(Resolve(S11, (), (), SnapshotId(0)))
    return machine


def vote(machine: TwoPhaseCoordinator, snapshot: SnapshotId) -> tuple[CommitCoordinatorEffect, ...]:
    machine.step(Prepared(P, S11, snapshot, (H1,)))
    return machine.step(Prepared(Q, S11, snapshot, (H2,)))


DECISION = Decision(ONE, ((P, (H1,)), (Q, (H2,))))


def test_the_last_vote_asks_for_the_log_and_nothing_else() -> None:
    machine = a_coordinator()
    machine.step(Begin(ONE))
    assert vote(machine, ONE) == (LogDecision(DECISION),)


def test_commits_follow_the_log_and_the_last_acknowledgement_settles() -> None:
    machine = a_coordinator()
    machine.step(Begin(ONE))
    vote(machine, ONE)
    assert machine.step(DecisionLogged(ONE)) == (
        ToParticipant(P, Commit(S11, ONE, (H1,))),
        ToParticipant(Q, Commit(S11, ONE, (H2,))),
    )
    assert machine.step(Committed(Q, S11, ONE)) == ()
    assert machine.step(Committed(P, S11, ONE)) == (Settled(ONE),)


def test_the_log_has_the_last_word_over_a_snapshot_that_is_to_be_abandoned() -> None:
    machine = a_coordinator()
    machine.step(Begin(ONE))
    vote(machine, ONE)
    assert machine.step(Abandon(ONE, "timeout")) == ()
    assert len(machine.step(DecisionLogged(ONE))) == 2


def test_a_decision_that_was_not_logged_is_abandoned_without_a_message() -> None:
    machine = a_coordinator()
    machine.step(Begin(ONE))
    vote(machine, ONE)
    assert machine.step(DecisionFailed(ONE, "disk full")) == (Abandoned(ONE, "the decision was not logged: disk full"),)


def test_a_refusal_abandons_and_the_other_vote_comes_too_late_without_fault() -> None:
    machine = a_coordinator()
    machine.step(Begin(ONE))
    assert machine.step(Refused(P, S11, ONE, "disk full")) == (Abandoned(ONE, "p refused: disk full"),)
    assert machine.step(Prepared(Q, S11, ONE, (H2,))) == ()


def test_nothing_begins_while_a_participant_is_not_back() -> None:
    machine = TwoPhaseCoordinator((P, Q), Incarnation(1))
    machine.step(Opened())
    machine.step(InDoubt(P, S11, (), keeps=False))
    assert machine.step(Begin(ONE)) == (Abandoned(ONE, "q: not back yet"),)


def test_a_new_coordinator_commits_what_the_log_names_and_aborts_the_rest() -> None:
    machine = TwoPhaseCoordinator((P, Q), Incarnation(2), decisions=[DECISION])
    machine.step(Opened())
    session = Session(Incarnation(2), Incarnation(5))
    other = Handle("not-named")
    assert machine.step(InDoubt(P, session, (H1, other), keeps=False)) == (
        ToParticipant(P, Resolve(session, commit=(H1,), abort=(other,), snapshot=ONE)),
    )


def test_what_a_participant_keeps_is_never_aborted() -> None:
    machine = TwoPhaseCoordinator((P, Q), Incarnation(2), decisions=[DECISION])
    machine.step(Opened())
    session = Session(Incarnation(2), Incarnation(5))
    (answer,) = machine.step(InDoubt(P, session, (H1, Handle("not-named")), keeps=True))
    assert answer == ToParticipant(P, Resolve(session, commit=(H1,), abort=(), snapshot=ONE))


def test_decisions_that_nobody_is_in_doubt_about_are_settled_at_once() -> None:
    machine = TwoPhaseCoordinator((P, Q), Incarnation(2), decisions=[DECISION])
    machine.step(Opened())
    session = Session(Incarnation(2), Incarnation(1))
    machine.step(InDoubt(P, session, (), keeps=True))
    assert Settled(ONE) in machine.step(InDoubt(Q, session, (), keeps=True))


def test_a_decision_for_a_sink_that_is_gone_is_refused_loudly() -> None:
    with pytest.raises(HostFault, match="names handles of q"):
        TwoPhaseCoordinator((P,), Incarnation(2), decisions=[DECISION])


def test_without_participants_a_decision_is_still_logged_first() -> None:
    machine = TwoPhaseCoordinator((), Incarnation(1))
    machine.step(Opened())
    assert machine.step(Begin(ONE)) == (LogDecision(Decision(ONE, ())),)
    assert machine.step(DecisionLogged(ONE)) == (Settled(ONE),)


def test_a_coordinator_drops_older_sessions_and_stands_down_before_a_newer_one() -> None:
    machine = a_coordinator()
    machine.step(Begin(ONE))
    assert machine.step(Prepared(P, Session(Incarnation(0), Incarnation(1)), ONE, (H1,))) == ()
    assert machine.step(Prepared(P, Session(Incarnation(2), Incarnation(1)), ONE, (H1,))) == (
        StandDown(Incarnation(2)),
    )
    assert vote(machine, ONE) == ()


def test_a_participant_drops_older_sessions_and_stands_down_before_a_newer_one() -> None:
    machine = a_participant(H1)
    assert machine.step(Commit(Session(Incarnation(1), Incarnation(0)), ONE, (H1,))) == ()
    assert machine.step(Commit(Session(Incarnation(0), Incarnation(1)), ONE, (H1,))) == ()
    assert machine.step(Commit(Session(Incarnation(1), Incarnation(2)), ONE, (H1,))) == (StandDown(Incarnation(2)),)
    assert machine.step(Commit(S11, ONE, (H1,))) == ()


@pytest.mark.parametrize(
    "nonsense",
    [
        Prepared(P, S11, ONE, (H1,)),  # a second vote
        Prepared(P, S11, TWO, (H1,)),  # nobody asked
        Committed(Q, S11, ONE),  # nothing was decided
        Refused(P, S11, ONE, "changed its mind"),
        Hello(NodeId("stranger"), Incarnation(1)),
    ],
)
def test_a_participant_that_breaks_the_protocol_is_named(nonsense: Any) -> None:
    machine = a_coordinator()
    machine.step(Begin(ONE))
    machine.step(Prepared(P, S11, ONE, (H1,)))
    before = machine.key()
    with pytest.raises(PeerFault):
        machine.step(nonsense)
    assert machine.key() == before


def test_a_vote_names_what_an_abandoned_snapshot_left_prepared() -> None:
    machine = a_participant()
    machine.step(Prepare(S11, ONE))
    machine.step(WritesPrepared(ONE, H1))
    machine.step(Prepare(S11, TWO))
    assert machine.step(WritesPrepared(TWO, H2)) == (ToCoordinator(Prepared(P, S11, TWO, (H1, H2))),)


def test_the_newer_commit_first_makes_both_visible_in_order_and_the_older_one_changes_nothing() -> None:
    machine = a_participant(H1, H2)
    assert machine.step(Commit(S11, TWO, (H1, H2))) == (
        CommitWrites(H1),
        CommitWrites(H2),
        ToCoordinator(Committed(P, S11, TWO)),
    )
    assert machine.step(Commit(S11, ONE, (H1,))) == (ToCoordinator(Committed(P, S11, ONE)),)


def test_a_commit_that_would_overtake_an_older_handle_is_the_coordinators_fault() -> None:
    machine = a_participant(H1, H2)
    with pytest.raises(PeerFault, match="ahead of h1"):
        machine.step(Commit(S11, TWO, (H2,)))


def test_a_participant_that_rolls_back_loads_its_state_after_its_doubts_are_resolved() -> None:
    machine = TwoPhaseParticipant(P, Incarnation(1), prepared=[H1, H2], keeps=False)
    machine.step(Opened())
    machine.step(Ask(Incarnation(1)))
    assert machine.step(Prepare(S11, TWO)) == (
        ToCoordinator(Refused(P, S11, TWO, "still in doubt about what was prepared before")),
    )
    assert machine.step(Resolve(S11, (H1,), (H2,), ONE)) == (
        CommitWrites(H1),
        AbortWrites(H2),
        RecoverFrom(ONE),
        ToCoordinator(Resolved(P, S11)),
    )


def test_what_was_prepared_for_a_coordinator_that_is_gone_is_named_by_the_next_vote() -> None:
    machine = a_participant()
    machine.step(Prepare(S11, ONE))
    machine.step(Ask(Incarnation(2)))
    session = Session(Incarnation(2), Incarnation(1))
    assert machine.step(WritesPrepared(ONE, H1)) == ()
    machine.step(Resolve(session, (), (), SnapshotId(0)))
    machine.step(Prepare(session, ONE))
    assert machine.step(WritesPrepared(ONE, H2)) == (ToCoordinator(Prepared(P, session, ONE, (H1, H2))),)


def test_a_prepare_that_comes_after_a_newer_one_is_refused() -> None:
    machine = a_participant()
    machine.step(Prepare(S11, TWO))
    assert machine.step(Prepare(S11, ONE)) == (ToCoordinator(Refused(P, S11, ONE, "snapshot 2 came first")),)

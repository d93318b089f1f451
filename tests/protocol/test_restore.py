"""Restore: every schedule of a coordinator and two nodes with crashes, timeouts and refusals; single rules; mutants."""

from __future__ import annotations

from typing import Any

import pytest

from strobe.model.errors import HostFault, PeerFault
from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId, Timeline
from strobe.protocol.coordinator.messages import NodeLost, Tick, WakeAt
from strobe.protocol.events import Deliver, Sending
from strobe.protocol.restore import Fence, Phase, RestoreCoordinator, RestoreParticipant
from strobe.protocol.restore.messages import (
    CancelRestore,
    ClaimIncarnation,
    Fenced,
    LoadFailed,
    LoadState,
    NodeReturned,
    Ready,
    Refused,
    RestoreCoordinatorEffect,
    Restored,
    RestoreFailed,
    RestoreOrder,
    RestoreParticipantEffect,
    RestoreRequested,
    Running,
    SendFenced,
    StandDown,
    Start,
    StartApplication,
    StateLoaded,
    StopApplication,
    Superseded,
    ToCoordinator,
    ToNode,
    Verdict,
)
from tests.protocol.explorer import Violation, explore
from tests.protocol.restore_world import P, Q, world

I1, I2, I3 = Incarnation(1), Incarnation(2), Incarnation(3)
T1, T2 = Timeline(1), Timeline(2)
SEVEN = SnapshotId(7)
C = ChannelId("q->p")


# ── every schedule ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("trouble", "states"),
    [
        ({}, 50),
        ({"crashes": 1}, 6_000),
        ({"coordinator_crashes": 1}, 3_000),
        ({"timeouts": 1}, 3_000),
        ({"refusals": 1}, 500),
    ],
    ids=str,
)
def test_everyone_runs_in_the_same_life_and_hears_only_that_life(trouble: dict[str, int], states: int) -> None:
    assert explore(world(**trouble)).states > states  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [{"crashes": 1, "refusals": 1}, {"timeouts": 1, "refusals": 1}], ids=str)
def test_two_troubles_in_one_restore(trouble: dict[str, int]) -> None:
    assert explore(world(**trouble)).states > 50_000  # type: ignore[arg-type]


# ── mutants: one broken rule each ───────────────────────────────────────────────────────────────────────────────────


class StartsWhenTheFirstIsReady(RestoreCoordinator):
    def _ready(self, attempt: Any) -> tuple[RestoreCoordinatorEffect, ...]:
        if len(attempt.unready) != 1:
            return ()
        return super()._ready(attempt._replace(unready=frozenset()))


class UsesAnIncarnationTwice(RestoreCoordinator):
    def _try_again(self, reason: str) -> tuple[RestoreCoordinatorEffect, ...]:
        self.incarnation = Incarnation(self.incarnation - 1)
        return super()._try_again(reason)


class KeepsTheTimelineOfAFailedStart(RestoreCoordinator):
    def _try_again(self, reason: str) -> tuple[RestoreCoordinatorEffect, ...]:
        timeline = self.timeline
        effects = super()._try_again(reason)
        self.timeline = timeline
        return tuple(_with_timeline(e, timeline) for e in effects)


def _with_timeline(effect: RestoreCoordinatorEffect, timeline: Timeline) -> RestoreCoordinatorEffect:
    if isinstance(effect, ClaimIncarnation):
        return ClaimIncarnation(effect.incarnation, timeline)
    if isinstance(effect, ToNode) and isinstance(effect.message, RestoreOrder):
        return ToNode(effect.node, RestoreOrder(effect.message.incarnation, timeline, effect.message.snapshot))
    return effect


class IgnoresALostNode(RestoreCoordinator):
    def _lost(self, node: NodeId, reason: str) -> tuple[RestoreCoordinatorEffect, ...]:
        self._missing |= {node}
        return ()


class SaysReadyBeforeItHasLoaded(RestoreParticipant):
    def _load(self, load: LoadState) -> tuple[RestoreParticipantEffect, ...]:
        self.phase = Phase.READY
        return (load, ToCoordinator(Ready(self.node, load.incarnation)))

    def _loaded(self, incarnation: Incarnation) -> tuple[RestoreParticipantEffect, ...]:
        return ()


class HasNoFence(RestoreParticipant):
    def _judge_message(self, incarnation: Incarnation) -> Verdict:
        return Verdict.CURRENT


class DeliversWhileItIsReady(RestoreParticipant):
    def _hold(self, deliver: Deliver) -> tuple[RestoreParticipantEffect, ...]:
        return (deliver,)


class DropsWhatComesBeforeItsStart(RestoreParticipant):
    def _hold(self, deliver: Deliver) -> tuple[RestoreParticipantEffect, ...]:
        return ()


COORDINATORS = [
    (StartsWhenTheFirstIsReady, {}, "had loaded its state|before everyone was ready|was started while"),
    (UsesAnIncarnationTwice, {"refusals": 1}, "claimed twice"),
    (KeepsTheTimelineOfAFailedStart, {"crashes": 1}, "started in two lives"),
    (IgnoresALostNode, {"crashes": 1}, "stuck|runs in life"),
]
PARTICIPANTS = [
    (SaysReadyBeforeItHasLoaded, {}, "had loaded its state"),
    (HasNoFence, {"crashes": 1}, "got a message of life|does not run|while p is loading|while q is loading"),
    (DeliversWhileItIsReady, {}, "does not run"),
    (DropsWhatComesBeforeItsStart, {}, "got \\(\\)"),
]


@pytest.mark.parametrize(("mutant", "trouble", "rule"), COORDINATORS, ids=lambda x: getattr(x, "__name__", ""))
def test_the_check_catches_a_coordinator_that(
    mutant: type[RestoreCoordinator], trouble: dict[str, int], rule: str
) -> None:
    with pytest.raises(Violation, match=rule):
        explore(world(**trouble, coordinator=mutant))  # type: ignore[arg-type]


@pytest.mark.parametrize(("mutant", "trouble", "rule"), PARTICIPANTS, ids=lambda x: getattr(x, "__name__", ""))
def test_the_check_catches_a_node_that(mutant: type[RestoreParticipant], trouble: dict[str, int], rule: str) -> None:
    with pytest.raises(Violation, match=rule):
        explore(world(**trouble, participant=mutant))  # type: ignore[arg-type]


# ── the fence ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_fence_drops_what_is_older_and_stops_at_what_is_newer() -> None:
    fence = Fence(I2)
    assert [fence.judge(i) for i in (I1, I2, I3)] == [Verdict.OLDER, Verdict.CURRENT, Verdict.NEWER]


def a_node(phase: Phase, incarnation: Incarnation = I2) -> RestoreParticipant:
    node = RestoreParticipant(P)
    if phase is not Phase.STOPPED:
        node.step(RestoreOrder(incarnation, T1, SEVEN))
    if phase in (Phase.READY, Phase.RUNNING):
        node.step(StateLoaded(incarnation))
    if phase is Phase.RUNNING:
        node.step(Start(incarnation))
    assert node.phase is phase
    return node


def test_a_running_node_drops_a_message_of_an_older_life() -> None:
    assert a_node(Phase.RUNNING).step(Fenced(C, "old", I1)) == ()


def test_a_running_node_that_hears_of_a_newer_life_stops() -> None:
    node = a_node(Phase.RUNNING)
    assert node.step(Fenced(C, "new", I3)) == (StopApplication(),)
    with pytest.raises(HostFault, match="not running"):
        node.step(Sending(ChannelId("p->q"), "x"))


def test_a_running_node_stamps_what_it_sends() -> None:
    assert a_node(Phase.RUNNING).step(Sending(C, "x")) == (SendFenced(C, "x", I2),)


@pytest.mark.parametrize("phase", [Phase.STOPPED, Phase.LOADING, Phase.READY])
def test_a_node_that_has_not_started_must_not_send(phase: Phase) -> None:
    with pytest.raises(HostFault, match="not running"):
        a_node(phase).step(Sending(C, "x"))


def test_what_comes_between_ready_and_start_is_delivered_after_the_start_in_order() -> None:
    node = a_node(Phase.READY)
    assert node.step(Fenced(C, "one", I2)) == ()
    assert node.step(Fenced(C, "two", I2)) == ()
    assert node.step(Start(I2)) == (
        StartApplication(I2, T1),
        Deliver(C, "one"),
        Deliver(C, "two"),
        ToCoordinator(Running(P, I2)),
    )


def test_what_was_held_for_a_failed_attempt_is_not_delivered_in_the_next() -> None:
    node = a_node(Phase.READY)
    node.step(Fenced(C, "one", I2))
    node.step(RestoreOrder(I3, T2, SEVEN))
    node.step(StateLoaded(I3))
    assert node.step(Start(I3)) == (StartApplication(I3, T2), ToCoordinator(Running(P, I3)))


def test_an_order_stops_the_application_before_it_loads() -> None:
    assert a_node(Phase.RUNNING).step(RestoreOrder(I3, T2, SEVEN)) == (StopApplication(), LoadState(I3, T2, SEVEN))


def test_a_load_for_an_older_attempt_changes_nothing() -> None:
    node = a_node(Phase.LOADING)
    node.step(RestoreOrder(I3, T1, SEVEN))
    assert node.step(StateLoaded(I2)) == ()
    assert node.step(LoadFailed(I2, "gone")) == ()
    assert node.phase is Phase.LOADING


def test_a_load_that_fails_is_refused() -> None:
    assert a_node(Phase.LOADING).step(LoadFailed(I2, "gone")) == (ToCoordinator(Refused(P, I2, "gone")),)


def test_a_process_that_has_loaded_nothing_does_not_start() -> None:
    node = a_node(Phase.STOPPED)
    assert node.step(Start(I2)) == ()
    assert node.phase is Phase.STOPPED


@pytest.mark.parametrize(
    ("phase", "nonsense"),
    [
        (Phase.LOADING, Start(I2)),
        (Phase.RUNNING, Start(I2)),
        (Phase.LOADING, RestoreOrder(I2, T1, SEVEN)),
        (Phase.LOADING, Fenced(C, "x", I2)),
    ],
    ids=str,
)
def test_a_coordinator_or_peer_that_breaks_the_protocol_is_named(phase: Phase, nonsense: Any) -> None:
    node = a_node(phase)
    before = node.key()
    with pytest.raises(PeerFault):
        node.step(nonsense)
    assert node.key() == before


# ── the coordinator ─────────────────────────────────────────────────────────────────────────────────────────────────


def a_coordinator(attempts: int = 3) -> RestoreCoordinator:
    machine = RestoreCoordinator((P, Q), incarnation=I1, timeline=T1, timeout=100, attempts=attempts)
    machine.step(Tick(1_000))
    machine.step(RestoreRequested(SEVEN))
    return machine


def test_an_incarnation_is_claimed_before_the_first_order_leaves() -> None:
    machine = RestoreCoordinator((P, Q), incarnation=I1, timeline=T1, timeout=100)
    order = RestoreOrder(I2, T2, SEVEN)
    assert machine.step(RestoreRequested(SEVEN)) == (
        ClaimIncarnation(I2, T2),
        ToNode(P, order),
        ToNode(Q, order),
        WakeAt(100),
    )


def test_start_is_sent_when_the_last_one_is_ready_and_not_before() -> None:
    machine = a_coordinator()
    assert machine.step(Ready(Q, I2)) == ()
    assert machine.step(Ready(P, I2)) == (ToNode(P, Start(I2)), ToNode(Q, Start(I2)))
    assert machine.step(Running(P, I2)) == ()
    assert machine.step(Running(Q, I2)) == (Restored(I2, T2, SEVEN),)


def test_when_the_time_is_over_a_higher_incarnation_begins_try_again() -> None:
    machine = a_coordinator()
    machine.step(Ready(P, I2))
    assert machine.step(Tick(1_099)) == ()
    effects = machine.step(Tick(1_100))
    assert effects[0] == ClaimIncarnation(I3, T2)
    assert effects[-1] == WakeAt(1_200)
    assert machine.step(Ready(Q, I2)) == (), "the failed attempt's answer must not count"


def test_a_failure_after_the_start_takes_a_new_timeline() -> None:
    machine = a_coordinator()
    machine.step(Ready(P, I2))
    machine.step(Ready(Q, I2))
    assert machine.step(NodeLost(Q, "killed")) == ()
    assert machine.step(NodeReturned(Q))[0] == ClaimIncarnation(I3, Timeline(T2 + 1))


def test_a_lost_node_is_waited_for_before_the_next_attempt() -> None:
    machine = a_coordinator()
    assert machine.step(NodeLost(Q, "killed")) == ()
    assert machine.step(Tick(9_999)) == ()
    assert machine.step(NodeReturned(Q))[0] == ClaimIncarnation(I3, T2)


def test_after_the_last_attempt_the_restore_fails_and_says_why() -> None:
    machine = a_coordinator(attempts=1)
    assert machine.step(Refused(Q, I2, "no such file")) == (
        RestoreFailed(SEVEN, "q refused: no such file (attempt 1 of 1)"),
    )
    assert machine.step(RestoreRequested(SEVEN))[0] == ClaimIncarnation(I3, Timeline(T2 + 1))


def test_a_cancelled_restore_ends_and_its_answers_are_ignored() -> None:
    machine = a_coordinator()
    assert machine.step(CancelRestore("by hand")) == (RestoreFailed(SEVEN, "cancelled: by hand"),)
    assert machine.step(Ready(P, I2)) == ()


@pytest.mark.parametrize("sign", [Ready(P, I3), Superseded(I3)], ids=str)
def test_a_coordinator_that_meets_a_newer_incarnation_stands_down(sign: Any) -> None:
    machine = a_coordinator()
    assert machine.step(sign) == (StandDown(I3),)
    assert machine.step(Ready(P, I2)) == ()


@pytest.mark.parametrize(
    ("nonsense", "whose"),
    [
        (Ready(NodeId("stranger"), I2), PeerFault),
        (Ready(P, I2), PeerFault),  # a second time
        (Running(P, I2), PeerFault),  # before the start
        (RestoreRequested(SEVEN), HostFault),
        (NodeReturned(Q), HostFault),
        (NodeLost(NodeId("stranger"), "x"), HostFault),
        (Superseded(I1), HostFault),
        (Tick(0), HostFault),
    ],
    ids=str,
)
def test_nonsense_changes_nothing_and_says_whose_fault_it_is(nonsense: Any, whose: type[Exception]) -> None:
    machine = a_coordinator()
    machine.step(Ready(P, I2))
    before = machine.key()
    with pytest.raises(whose):
        machine.step(nonsense)
    assert machine.key() == before

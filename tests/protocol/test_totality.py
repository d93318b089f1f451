"""Every machine is total: whatever it is fed, it answers with effects or says whose fault it is, and is then unchanged.

Inputs are well typed, but otherwise arbitrary: known and unknown channels, ids that nobody ever began, any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from strobe.model.errors import ProtocolError
from strobe.model.ids import ChannelId, Incarnation, NodeId, Timeline
from strobe.model.kind import Kind
from strobe.protocol import dijkstra_scholten, events
from strobe.protocol.barriers import BarrierMode, Barriers
from strobe.protocol.chandy_lamport import ChandyLamport
from strobe.protocol.coordinator import Coordinator
from strobe.protocol.coordinator import messages as coordination
from strobe.protocol.lai_yang import LaiYang
from strobe.protocol.restore import RestoreCoordinator, RestoreParticipant
from strobe.protocol.restore import messages as restoring
from strobe.protocol.two_phase_commit import TwoPhaseCoordinator, TwoPhaseParticipant
from strobe.protocol.two_phase_commit import messages as committing
from strobe.protocol.wrong import AgreedClock, FreezeInTurn

INPUTS, OUTPUTS = ("in1", "in2", "loop"), ("out", "loop")
channel = st.sampled_from([*INPUTS, "out", "unknown"])
snapshot = st.integers(-1, 4)
small = st.integers(-1, 3)
message = st.sampled_from(["m1", "m2"])
node = st.sampled_from(["p", "q", "stranger"])
reason = st.just("because")
handle = st.sampled_from(["h1", "h2", "h3"])
handles = st.lists(handle, max_size=3, unique=True).map(tuple)
session = st.builds(committing.Session, st.integers(0, 3), st.integers(0, 3))

SNAPSHOT_INPUTS = st.one_of(
    st.builds(events.Initiate, snapshot),
    st.builds(events.MessageArrived, channel, message, small),
    st.builds(events.Sending, channel, message),
    st.builds(events.MarkerArrived, channel, snapshot),
    st.builds(events.BarrierArrived, channel, snapshot, st.booleans(), st.lists(message, max_size=2).map(tuple)),
    st.builds(events.InputEnded, channel),
    st.builds(events.AlignmentTimedOut, snapshot),
    st.builds(events.CountArrived, channel, snapshot, small),
    st.builds(events.Abort, snapshot),
    st.builds(events.Thaw, snapshot),
)
LIKELY_INPUTS = st.one_of(
    st.builds(events.MessageArrived, st.sampled_from(INPUTS), st.just("m"), st.integers(0, 1)),
    st.builds(events.MarkerArrived, st.sampled_from(INPUTS), st.integers(1, 2)),
    st.builds(events.BarrierArrived, st.sampled_from(INPUTS), st.integers(1, 2), st.booleans()),
    st.builds(events.CountArrived, st.sampled_from(INPUTS), st.integers(1, 2), st.integers(0, 2)),
)
COMMIT_INPUTS = st.one_of(
    st.just(committing.Opened()),
    st.builds(committing.Begin, snapshot),
    st.builds(committing.Abandon, snapshot, reason),
    st.builds(committing.DecisionLogged, snapshot),
    st.builds(committing.DecisionFailed, snapshot, reason),
    st.builds(committing.Judged, snapshot, st.sampled_from(committing.Finding)),
    st.builds(committing.Released, snapshot),
    st.builds(committing.Hello, node, small),
    st.builds(committing.InDoubt, node, session, handles, st.booleans()),
    st.builds(committing.Resolved, node, session),
    st.builds(committing.Prepared, node, session, snapshot, handles),
    st.builds(committing.Refused, node, session, snapshot, reason),
    st.builds(committing.Committed, node, session, snapshot),
    st.builds(committing.WritesPrepared, snapshot, st.none() | handle),
    st.builds(committing.WritesFailed, snapshot, reason),
    st.builds(committing.Ask, small),
    st.builds(committing.Resolve, session, handles, handles, snapshot),
    st.builds(committing.Prepare, session, snapshot),
    st.builds(committing.Commit, session, snapshot, handles),
)
RESTORE_INPUTS = st.one_of(
    st.builds(coordination.Tick, st.integers(0, 50)),
    st.builds(coordination.NodeLost, node, reason),
    st.builds(restoring.NodeReturned, node),
    st.builds(restoring.RestoreRequested, snapshot),
    st.builds(restoring.CancelRestore, reason),
    st.builds(restoring.Superseded, small),
    st.builds(restoring.Ready, node, small),
    st.builds(restoring.Refused, node, small, reason),
    st.builds(restoring.Running, node, small),
    st.builds(restoring.RestoreOrder, small, small, snapshot),
    st.builds(restoring.Start, small),
    st.builds(restoring.StateLoaded, small),
    st.builds(restoring.LoadFailed, small, reason),
    st.builds(restoring.Fenced, channel, message, small),
    st.builds(events.Sending, channel, message),
)
TERMINATION_INPUTS = st.one_of(
    st.just(dijkstra_scholten.StartWork()),
    st.just(dijkstra_scholten.BecameIdle()),
    st.builds(dijkstra_scholten.WorkArrived, channel, message),
    st.builds(dijkstra_scholten.SendingWork, channel, message),
    st.builds(dijkstra_scholten.SignalArrived, channel),
)
COORDINATOR_INPUTS = st.one_of(
    st.builds(coordination.Tick, st.integers(0, 50)),
    st.builds(coordination.NodeReady, node, small),
    st.builds(coordination.NodeLost, node, reason),
    st.builds(coordination.AllLost, reason),
    st.builds(coordination.TriggerRequested, reason, st.sampled_from(Kind)),
    st.builds(coordination.Acknowledged, snapshot, node, small),
    st.builds(coordination.DeclinedBy, snapshot, node, small, reason),
    st.builds(coordination.ManifestWritten, snapshot),
    st.builds(coordination.ManifestFailed, snapshot, reason),
    st.builds(coordination.CutRefused, snapshot, reason),
    st.builds(coordination.AbortRequested, snapshot, reason),
)


@dataclass(frozen=True)
class Subject:
    make: Callable[[], Any]
    inputs: st.SearchStrategy[Any]

    @property
    def likely(self) -> st.SearchStrategy[Any]:
        """Inputs that seldom are refused, so that different orders of the same ones lead far."""
        return LIKELY_INPUTS if self.inputs is SNAPSHOT_INPUTS else self.inputs


def _channels(names: Iterable[str]) -> tuple[ChannelId, ...]:
    return tuple(ChannelId(name) for name in names)


def _barriers(mode: BarrierMode, feedback: Iterable[str] = ("loop",)) -> Subject:
    return Subject(
        lambda: Barriers(_channels(INPUTS), _channels(OUTPUTS), feedback=_channels(feedback), mode=mode),
        SNAPSHOT_INPUTS,
    )


P, Q, ONE = NodeId("p"), NodeId("q"), Incarnation(1)
SUBJECTS = {
    "chandy-lamport": Subject(lambda: ChandyLamport(_channels(INPUTS), _channels(OUTPUTS)), SNAPSHOT_INPUTS),
    "lai-yang": Subject(lambda: LaiYang(_channels(INPUTS), _channels(OUTPUTS)), SNAPSHOT_INPUTS),
    **{mode.value: _barriers(mode) for mode in BarrierMode},
    **{f"{mode.value} without a loop": _barriers(mode, feedback=()) for mode in BarrierMode},
    "barriers at a source": Subject(lambda: Barriers((), _channels(OUTPUTS)), SNAPSHOT_INPUTS),
    "agreed clock": Subject(lambda: AgreedClock(_channels(INPUTS), _channels(OUTPUTS)), SNAPSHOT_INPUTS),
    "freeze in turn": Subject(lambda: FreezeInTurn(_channels(INPUTS), _channels(OUTPUTS)), SNAPSHOT_INPUTS),
    "coordinator": Subject(
        lambda: Coordinator({P: (), Q: (P,)}, coordination.CoordinatorSettings(interval=5, timeout=20)),
        COORDINATOR_INPUTS,
    ),
    "commit coordinator": Subject(lambda: TwoPhaseCoordinator((P, Q), ONE), COMMIT_INPUTS),
    "commit coordinator that waits": Subject(lambda: TwoPhaseCoordinator((P, Q), ONE, judges=True), COMMIT_INPUTS),
    "commit participant": Subject(lambda: TwoPhaseParticipant(P, ONE), COMMIT_INPUTS),
    "restore coordinator": Subject(
        lambda: RestoreCoordinator((P, Q), incarnation=ONE, timeline=Timeline(1), timeout=10), RESTORE_INPUTS
    ),
    "restore participant": Subject(lambda: RestoreParticipant(P), RESTORE_INPUTS),
    "termination at the root": Subject(
        lambda: dijkstra_scholten.DijkstraScholten(_channels(INPUTS), _channels(OUTPUTS), root=True), TERMINATION_INPUTS
    ),
    "termination elsewhere": Subject(
        lambda: dijkstra_scholten.DijkstraScholten(_channels(INPUTS), _channels(OUTPUTS)), TERMINATION_INPUTS
    ),
}


@pytest.mark.parametrize("name", SUBJECTS)
@given(data=st.data())
def test_whatever_comes_is_answered_or_refused_and_a_refusal_changes_nothing(name: str, data: st.DataObject) -> None:
    subject = SUBJECTS[name]
    machine = subject.make()
    for input in data.draw(st.lists(subject.inputs, max_size=25)):
        before = machine.key()
        hash(before)
        try:
            effects = machine.step(input)
        except ProtocolError:
            assert machine.key() == before, f"{input} was refused, but changed the machine"
        else:
            assert isinstance(effects, tuple)


@pytest.mark.parametrize("name", SUBJECTS)
@settings(max_examples=300, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(data=st.data())
def test_machines_with_equal_keys_answer_alike_for_ever(name: str, data: st.DataObject) -> None:
    """The explorers know a state again by its key: what two machines do next may depend on nothing else."""
    subject = SUBJECTS[name]
    history = data.draw(st.lists(subject.likely, max_size=6))
    machines = [subject.make(), subject.make()]
    for machine, inputs in zip(machines, (history, data.draw(st.permutations(history))), strict=True):
        for input in inputs:
            _try(machine, input)
    assume(machines[0].key() == machines[1].key())
    for input in data.draw(st.lists(subject.likely | subject.inputs, max_size=6)):
        assert _try(machines[0], input) == _try(machines[1], input)
        assert machines[0].key() == machines[1].key()


def _try(machine: Any, input: Any) -> Any:
    try:
        return machine.step(input)
    except ProtocolError as fault:
        return type(fault), str(fault)

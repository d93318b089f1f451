"""What the snapshot machines refuse, and what they must not keep; the rules themselves are in `tests/scenarios`."""

from __future__ import annotations

from typing import Any

import pytest

from strobe.model.errors import HostFault, PeerFault, ProtocolError
from strobe.model.ids import ChannelId, SnapshotId
from strobe.protocol.barriers import BarrierMode, Barriers
from strobe.protocol.chandy_lamport import ChandyLamport
from strobe.protocol.events import (
    ORDINARY,
    Abort,
    AlignmentTimedOut,
    BarrierArrived,
    BarrierOptions,
    ChannelRecorded,
    CountArrived,
    Deliver,
    Effect,
    Hold,
    Initiate,
    InputEnded,
    MarkerArrived,
    MessageArrived,
    RecordState,
    Release,
    SendBarrier,
    SendCount,
)
from strobe.protocol.lai_yang import LaiYang

A, B, OUT, LOOP = ChannelId("a"), ChannelId("b"), ChannelId("out"), ChannelId("loop")
ONE, TWO, ZERO = SnapshotId(1), SnapshotId(2), SnapshotId(0)


@pytest.mark.parametrize(
    ("make", "input", "whose"),
    [
        (ChandyLamport, Initiate(ZERO), HostFault),
        (ChandyLamport, MarkerArrived(A, ZERO), PeerFault),
        (LaiYang, Initiate(ZERO), HostFault),
        (LaiYang, CountArrived(A, ZERO, 0), PeerFault),
        (LaiYang, CountArrived(A, ONE, -1), PeerFault),
        (LaiYang, MessageArrived(A, "m", -1), PeerFault),
        (Barriers, BarrierArrived(A, ZERO), PeerFault),
    ],
)
def test_a_number_that_no_snapshot_can_have_is_refused_not_swallowed(
    make: Any, input: Any, whose: type[ProtocolError]
) -> None:
    machine = make((A,), ())
    before = machine.key()
    with pytest.raises(whose, match=r"numbered|low"):
        machine.step(input)
    assert machine.key() == before


def test_a_source_refuses_to_start_a_snapshot_without_a_number() -> None:
    with pytest.raises(HostFault, match="numbered from 1"):
        Barriers((), (OUT,)).step(Initiate(ZERO))


def test_a_count_below_what_has_come_is_refused_instead_of_closing_the_channel() -> None:
    machine = LaiYang((A,), ())
    for _ in range(2):
        machine.step(MessageArrived(A, "twice", 0))
    before = machine.key()
    with pytest.raises(PeerFault, match="2 messages from before snapshot 1"):
        machine.step(CountArrived(A, ONE, 1))
    assert machine.key() == before


def test_a_count_below_what_has_come_since_the_recording_is_refused_too() -> None:
    machine = LaiYang((A,), ())
    machine.step(Initiate(ONE))
    for _ in range(2):
        machine.step(MessageArrived(A, "twice", 0))
    with pytest.raises(PeerFault, match="its sender counted 1"):
        machine.step(CountArrived(A, ONE, 1))


def test_chandy_lamport_keeps_nothing_of_a_long_past_with_an_abort_in_it() -> None:
    machine = ChandyLamport((A,), ())
    machine.step(Initiate(ONE))
    machine.step(Abort(ONE))
    for number in range(2, 1_000):
        machine.step(MarkerArrived(A, SnapshotId(number)))
    assert len(str(machine.key())) < 100


def test_an_aborted_snapshot_stays_aborted_among_finished_ones() -> None:
    machine = ChandyLamport((A,), ())
    machine.step(Abort(ONE))
    machine.step(MarkerArrived(A, TWO))
    assert machine.step(MarkerArrived(A, ONE)) == ()
    with pytest.raises(PeerFault, match="second marker for snapshot 2"):
        machine.step(MarkerArrived(A, TWO))


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_held_inputs_are_released_in_the_order_of_the_inputs(order: tuple[ChannelId, ChannelId]) -> None:
    """Two machines in the same state must do the same: the order of arrival is not part of the state."""
    machine = Barriers((A, B), ())
    for channel in order:
        effects = machine.step(BarrierArrived(channel, ONE))
    assert [e for e in effects if isinstance(e, Release)] == [Release(A), Release(B)]


@pytest.mark.parametrize("mode", [BarrierMode.ALIGNED, BarrierMode.UNALIGNED])
def test_a_timer_that_was_never_asked_for_is_the_hosts_fault(mode: BarrierMode) -> None:
    machine = Barriers((A, B), (), mode=mode)
    machine.step(BarrierArrived(A, ONE))
    with pytest.raises(HostFault, match="ask for none"):
        machine.step(AlignmentTimedOut(ONE))


def test_feedback_channels_must_be_inputs() -> None:
    with pytest.raises(HostFault, match="not inputs of this node"):
        Barriers((A,), (OUT,), feedback=(LOOP,))


@pytest.mark.parametrize(
    ("input", "whose"),
    [
        (MessageArrived(A, "m"), HostFault),  # held
        (BarrierArrived(A, TWO), HostFault),
        (InputEnded(A), HostFault),
        (MessageArrived(OUT, "m"), HostFault),  # no input
        (Initiate(TWO), HostFault),  # barriers must come through the inputs
    ],
    ids=str,
)
def test_a_node_that_aligns_refuses_what_its_host_must_hold_back(input: Any, whose: type[ProtocolError]) -> None:
    machine = Barriers((A, B), (OUT,))
    assert machine.step(BarrierArrived(A, ONE)) == (Hold(A),)
    before = machine.key()
    with pytest.raises(whose):
        machine.step(input)
    assert machine.key() == before
    assert machine.step(MessageArrived(B, "m")) == (Deliver(B, "m"),)


@pytest.mark.parametrize("input", [MessageArrived(A, "m"), BarrierArrived(A, ONE), InputEnded(A)], ids=str)
def test_what_comes_after_the_end_of_an_input_is_its_senders_fault(input: Any) -> None:
    machine = Barriers((A, B), ())
    machine.step(InputEnded(A))
    with pytest.raises(PeerFault, match="after its end"):
        machine.step(input)


def test_a_restarted_node_swallows_barriers_of_its_earlier_life() -> None:
    machine = Barriers((A,), (OUT,), newest=5)
    assert machine.step(BarrierArrived(A, SnapshotId(5))) == ()
    assert len(machine.step(BarrierArrived(A, SnapshotId(6)))) > 1


LAST = BarrierOptions(last=True)


def what_a_barrier_asked_for(machine: type[Barriers]) -> list[str]:
    """Whether a node is told, when it records, what the barriers asked for, and sends that on. What is wrong."""
    found = []
    for mode in BarrierMode:
        source, joined = machine((), (OUT,), mode=mode), machine((A, B), (OUT,), mode=mode)
        started = source.step(Initiate(ONE, LAST))
        joined.step(BarrierArrived(A, ONE, options=LAST))
        joined.step(Abort(ONE))  # the one that comes next must not inherit it
        first = joined.step(BarrierArrived(A, TWO))
        second = joined.step(BarrierArrived(B, TWO))
        for told, sent, effects in ((LAST, LAST, started), (ORDINARY, ORDINARY, first + second)):
            found += [f"{mode}: {e}" for e in effects if isinstance(e, RecordState) and e.options != told]
            found += [f"{mode}: {e}" for e in effects if isinstance(e, SendBarrier) and e.options != sent]
    return found


class SaysNothingOn(Barriers):
    """Sends its barriers on without what they asked for."""

    def _record(self, snapshot: SnapshotId, *, overtakes: bool, by: BarrierArrived | None = None) -> tuple[Effect, ...]:
        effects = super()._record(snapshot, overtakes=overtakes, by=by)
        return tuple(SendBarrier(e.channel, snapshot, overtakes) if isinstance(e, SendBarrier) else e for e in effects)


class RemembersTheLastOne(Barriers):
    """Takes what one snapshot asked for as asked for by all that follow."""

    def _begin(self, snapshot: SnapshotId, options: BarrierOptions) -> None:
        super()._begin(snapshot, BarrierOptions(last=options.last or self._options.last))


def test_a_barrier_is_sent_on_with_what_it_asked_for() -> None:
    assert what_a_barrier_asked_for(Barriers) == []


@pytest.mark.parametrize("mutant", [SaysNothingOn, RemembersTheLastOne])
def test_a_machine_that_gets_it_wrong_is_caught(mutant: type[Barriers]) -> None:
    assert what_a_barrier_asked_for(mutant)


ALIGNED = BarrierOptions(aligned=True)


def what_an_aligned_snapshot_found(machine: type[Barriers]) -> list[str]:
    """Whether a node that does not align others aligns a snapshot that asks for it. What is wrong."""
    node = machine((A, B), (OUT,), mode=BarrierMode.UNALIGNED)
    found = [] if node.step(BarrierArrived(A, ONE, options=ALIGNED)) == (Hold(A),) else ["it does not wait for b"]
    node = machine((A, B), (OUT,), mode=BarrierMode.UNALIGNED)
    try:
        node.step(Initiate(ONE, ALIGNED))
        found.append("it starts by itself")
    except HostFault:
        pass
    return found


class AlignsNothing(Barriers):
    """Does what it does with all snapshots, whatever they ask for."""

    def overtakes(self, options: BarrierOptions) -> bool:
        return self.mode is BarrierMode.UNALIGNED


def test_a_snapshot_that_asks_to_be_aligned_is_aligned_whatever_the_mode() -> None:
    assert what_an_aligned_snapshot_found(Barriers) == []
    assert len(what_an_aligned_snapshot_found(AlignsNothing)) == 2


def test_an_aligned_snapshot_behind_an_unaligned_one_waits_for_both_inputs() -> None:
    node = Barriers((A, B), (OUT,), mode=BarrierMode.UNALIGNED)
    node.step(Initiate(ONE))
    node.step(BarrierArrived(A, ONE))
    assert node.step(BarrierArrived(A, TWO, options=ALIGNED)) == (Hold(A),)
    assert ChannelRecorded(ONE, B, ()) in node.step(BarrierArrived(B, ONE))
    assert RecordState(TWO, ALIGNED) in node.step(BarrierArrived(B, TWO, options=ALIGNED))


def test_a_resumed_lai_yang_counts_on_from_the_cut_and_asks_for_no_old_snapshot() -> None:
    sent, received = {OUT: 7}, {A: 3}
    machine = LaiYang.resumed(received, sent, number=41, sent=sent, received=received)
    assert machine.step(MessageArrived(A, "was in flight", 12)) == (Deliver(A, "was in flight"),)
    snapshot = SnapshotId(42)
    assert machine.step(Initiate(snapshot)) == (RecordState(snapshot), SendCount(OUT, snapshot, 7))
    assert ChannelRecorded(snapshot, A, ()) in machine.step(CountArrived(A, snapshot, 4))

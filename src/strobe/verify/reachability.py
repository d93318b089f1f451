"""The theorem of the paper (Chandy and Lamport 1985, section 4) as a program.

Theory
------
Let a run go from state S to state E, and let a snapshot record S*. Call a step *prerecording* if its node recorded
after it, *postrecording* otherwise. Wherever a postrecording step stands right before a prerecording one, the two
belong to different nodes and neither causes the other (this is where the cut must be consistent), so they can change
places. When no such pair is left, all prerecording steps come first: a run that takes the same steps from S to E and
passes through S* on the way.

`prove` builds that run and performs it: it replays every step through the application, compares each send with the
journal's, each node's state and each channel's content at the cut with the recorded ones, bit for bit, and the end
with the end of the run as it really was. So S* could have happened, and what really happened could have followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

from strobe.model.app import Application
from strobe.model.cut import Cut, Json, Message, canonical
from strobe.model.events import Event, Internal, Received, Recorded, Sent
from strobe.model.ids import ChannelId, NodeId, SnapshotId
from strobe.verify.causality import CausalLoop, legal_order
from strobe.verify.explain import name_of, same, text_of
from strobe.verify.history import Epoch, History
from strobe.verify.journal import Journal

__all__ = ["Proof", "prove"]


@dataclass(frozen=True)
class Proof:
    """A legal order of the run's own steps in which the recorded state occurs, or the reason why there is none."""

    snapshot: SnapshotId
    holds: bool
    sentence: str  # the verdict; if it does not hold, the first difference
    order: tuple[tuple[NodeId, int], ...]  # (node, step), all of the epoch
    cut: int  # so many steps come before the cut
    moved: int  # prerecording steps that had postrecording ones before them in the actual order
    swaps: int  # exchanges of neighbours that lead from the actual order to this one

    def to_json(self) -> dict[str, Json]:
        return {
            "snapshot": self.snapshot,
            "holds": self.holds,
            "sentence": self.sentence,
            "order": [list(step) for step in self.order],
            "cut": self.cut,
            "moved": self.moved,
            "swaps": self.swaps,
        }


class _Difference(Exception):
    """Here the replay and the journal differ."""


@dataclass(frozen=True)
class _Step:
    """A whole step: what begins it, and what it sends."""

    cause: Internal | Received
    sends: tuple[Sent, ...]

    @property
    def name(self) -> str:
        return f"step {self.cause.step} of {self.cause.node}"


def prove(journal: Journal | History, cut: Cut, app: Application, *, cut_short: bool = False) -> Proof:
    """`cut_short`: the last step of a node may have been interrupted by the end of its life, in the middle of its
    sends; what it would have sent besides is not asked for."""
    history = journal if isinstance(journal, History) else History(journal)
    epoch = history.epoch_of(cut)
    missing = [n for n in history.graph.nodes if epoch is None or n not in epoch.records[cut.snapshot]]
    if epoch is None or missing:
        return _failed(cut, f"{', '.join(missing)} never recorded for it, so there is no cut to reach", (), 0)
    recorded = {node: _step_of(history.events[positions[0]]) for node, positions in epoch.records[cut.snapshot].items()}
    try:
        positions = legal_order(history, epoch)
    except CausalLoop as loop:
        return _failed(cut, loop.what.rstrip("."), (), 0)
    actual = _whole_steps(history, epoch, positions)
    before = [step for step in actual if step.cause.step <= recorded[step.cause.node]]
    after = [step for step in actual if step.cause.step > recorded[step.cause.node]]
    order = tuple((step.cause.node, step.cause.step) for step in (*before, *after))
    moved, swaps = _distance(actual, recorded)
    ends = _last_steps(actual) if cut_short else frozenset()
    replay = _Replay(history, epoch, app, recorded, ends)
    try:
        replay.check_start()
        replay.run(before)
        replay.compare(cut)
        replay.run(after)
        real = _Replay(history, epoch, app, recorded, ends)
        real.run(actual)
        replay.same_end(real)
    except _Difference as difference:
        return _failed(cut, str(difference), order, len(before), moved, swaps)
    verdict = (
        f"Snapshot {cut.snapshot} is reachable: {len(before)} steps lead from the initial state to it and "
        f"{len(after)} from it to the end of the run; {moved} of them stand earlier than they did "
        f"({swaps} exchanges of independent neighbours). Replayed, states and channels are the same bit for bit."
    )
    return Proof(cut.snapshot, True, verdict, order, len(before), moved, swaps)


def _failed(
    cut: Cut, why: str, order: tuple[tuple[NodeId, int], ...], at: int, moved: int = 0, swaps: int = 0
) -> Proof:
    return Proof(cut.snapshot, False, f"Snapshot {cut.snapshot} is not reachable: {why}.", order, at, moved, swaps)


def _step_of(event: Event) -> int:
    assert isinstance(event, Recorded)
    return event.step


def _whole_steps(history: History, epoch: Epoch, positions: Iterable[int]) -> list[_Step]:
    sends: dict[tuple[NodeId, int], list[tuple[int, Sent]]] = {}
    for on_channel in epoch.sends.values():
        for position in on_channel:
            sent = history.events[position]
            assert isinstance(sent, Sent)
            sends.setdefault((sent.node, sent.step), []).append((position, sent))
    steps = []
    for position in positions:
        cause = history.events[position]
        assert isinstance(cause, Internal | Received)
        mine = sends.get((cause.node, cause.step), [])
        mine.sort(key=lambda pair: pair[0])
        steps.append(_Step(cause, tuple(sent for _, sent in mine)))
    return steps


def _last_steps(steps: Iterable[_Step]) -> frozenset[tuple[NodeId, int]]:
    return frozenset({step.cause.node: (step.cause.node, step.cause.step) for step in steps}.values())


def _distance(actual: Sequence[_Step], recorded: Mapping[NodeId, int]) -> tuple[int, int]:
    moved = swaps = passed = 0
    for step in actual:
        if step.cause.step > recorded[step.cause.node]:
            passed += 1
        elif passed:
            moved += 1
            swaps += passed
    return moved, swaps


class _Replay:
    """The system, performed again step by step from where the epoch began."""

    def __init__(
        self,
        history: History,
        epoch: Epoch,
        app: Application,
        recorded: Mapping[NodeId, int],
        ends: frozenset[tuple[NodeId, int]],
    ) -> None:
        self.history = history
        self.ends = ends  # steps that may have been cut short
        self.recorded = recorded
        self.epoch = epoch
        self.app = app
        self.fifo = history.header.order == "fifo"
        # A copy: an application that breaks its promise and changes a state must not change the journal's.
        self.states: dict[NodeId, Json] = deepcopy(dict(epoch.states))
        # A channel is a dict by seq: dicts keep the order of sending, and a reordering channel takes from the middle.
        self.channels: dict[ChannelId, dict[int, Json]] = {
            channel: {m.seq: m.payload for m in epoch.contents.get(channel, ())} for channel in history.graph.by_id
        }
        self.owed: dict[tuple[ChannelId, int], int] = {}  # what a duplicating channel will deliver once more

    def check_start(self) -> None:
        """Is this the application that the journal is of?"""
        for node, state in self.states.items() if self.epoch.restart is None else ():
            start = self.app.initial(node)
            if not same(start, state):
                raise _Difference(
                    f"{node} starts in the state {text_of(state)} in the journal, but this application starts it in "
                    f"{text_of(start)}"
                )

    def run(self, steps: Iterable[_Step]) -> None:
        for step in steps:
            cause, node = step.cause, step.cause.node
            payload = None if isinstance(cause, Internal) else self._take(cause, step)
            try:
                if isinstance(cause, Internal):
                    state, sends = self.app.act(node, self.states[node], cause.action)
                else:
                    state, sends = self.app.receive(node, self.states[node], cause.channel, payload)
            except Exception as error:  # the application is somebody else's code: whatever it raises is its answer
                if (node, cause.step) in self.ends and not step.sends:
                    continue
                raise _Difference(f"the application refuses {step.name} ({type(error).__name__}: {error})") from error
            self.states[node] = state
            self._send(step, sends)

    def _take(self, receipt: Received, step: _Step) -> Json:
        channel = self.history.graph.by_id[receipt.channel]
        queue = self.channels[receipt.channel]
        if receipt.seq not in queue:
            key = (receipt.channel, receipt.seq)
            if self.owed.get(key, 0) == 0:
                raise _Difference(self._absent(receipt, step))
            self.owed[key] -= 1
            return self.history.payload(self.epoch, receipt.channel, receipt.seq)
        if self.fifo:
            first = next(iter(queue))
            # What the channel dropped stays in its queue until a later message is taken: only then is it surely gone.
            while first != receipt.seq and first in self.history.losses(self.epoch, receipt.channel):
                del queue[first]
                first = next(iter(queue))
            if first != receipt.seq:
                raise _Difference(
                    f"{step.name} receives message {receipt.seq} on {name_of(channel)}, but message {first} is ahead "
                    "of it in the channel"
                )
        if receipt.channel in self.epoch.duplicated:
            copies = self.history.duplicates(self.epoch, receipt.channel).get(receipt.seq, ())
            self.owed[receipt.channel, receipt.seq] = len(copies)
        return queue.pop(receipt.seq)

    def _absent(self, receipt: Received, step: _Step) -> str:
        channel = self.history.graph.by_id[receipt.channel]
        what = f"{step.name} receives message {receipt.seq} on {name_of(channel)}"
        position = self.history.sender(self.epoch, receipt.channel).get(receipt.seq)
        if position is None:
            return f"{what}, but {channel.source} never sent it"
        sent = self.history.events[position] if position >= 0 else None
        early = receipt.step <= self.recorded[receipt.node]
        if isinstance(sent, Sent) and early and sent.step > self.recorded[sent.node]:
            return (
                f"{what} and was recorded, but {channel.source} sends it in step {sent.step}, after its recording: no "
                "order puts the one before the cut and the other behind it"
            )
        return f"{what}, but the channel does not hold it any more: it was delivered before"

    def _send(self, step: _Step, sends: Sequence[tuple[ChannelId, Json]]) -> None:
        if (step.cause.node, step.cause.step) in self.ends:
            sends = sends[: len(step.sends)]
        for i in range(max(len(sends), len(step.sends))):
            if i >= len(step.sends):
                raise _Difference(
                    f"{step.name}, replayed, sends {text_of(sends[i][1])} on {sends[i][0]}, but in the journal it "
                    f"sends only {len(step.sends)} messages"
                )
            sent = step.sends[i]
            if i >= len(sends):
                raise _Difference(
                    f"in the journal {step.name} sends message {sent.seq} on {sent.channel}, but replayed it sends "
                    f"only {len(sends)} messages"
                )
            channel, payload = sends[i]
            if channel != sent.channel or not same(payload, sent.payload):
                raise _Difference(
                    f"in the journal {step.name} sends {text_of(sent.payload)} on {sent.channel} (message {sent.seq}), "
                    f"but replayed it sends {text_of(payload)} on {channel}"
                )
            self.channels[channel][sent.seq] = payload

    def compare(self, cut: Cut) -> None:
        """Is this the recorded state, bit for bit?"""
        for node in self.history.graph.nodes:
            if node not in cut.states:
                raise _Difference(f"it holds no state for {node}")
            if not same(self.states[node], cut.states[node]):
                raise _Difference(
                    f"the run leads {node} to the state {text_of(self.states[node])}, but the snapshot holds "
                    f"{text_of(cut.states[node])}"
                )
        for channel in self.history.graph.channels:
            if channel.id not in cut.channels:
                raise _Difference(f"it holds no content for channel {name_of(channel)}")
            there = [Message(seq, payload) for seq, payload in self.channels[channel.id].items()]
            held = list(cut.channels[channel.id])
            if not self.fifo:  # where order means nothing, put both into the same
                there.sort(key=_by_seq)
                held.sort(key=_by_seq)
            if canonical(there) != canonical(held):
                raise _Difference(
                    f"the run leaves {_contents(there)} in {name_of(channel)}, but the snapshot holds {_contents(held)}"
                )

    def same_end(self, other: _Replay) -> None:
        for node in self.history.graph.nodes:
            if not same(self.states[node], other.states[node]):
                raise _Difference(
                    f"the reordered run ends with {node} in the state {text_of(self.states[node])}, the actual one "
                    f"with {text_of(other.states[node])}"
                )
        for channel in self.history.graph.channels:
            mine, theirs = self.channels[channel.id], other.channels[channel.id]
            if canonical(list(mine.items())) != canonical(list(theirs.items())):
                raise _Difference(f"the reordered and the actual run end with different messages in {name_of(channel)}")


def _by_seq(message: Message) -> int:
    return message.seq


def _contents(messages: Sequence[Message]) -> str:
    if not messages:
        return "nothing"
    shown = ", ".join(f"message {m.seq} ({text_of(m.payload)})" for m in messages[:5])
    return shown if len(messages) <= 5 else f"{shown} and {len(messages) - 5} more"

"""A run from a journal: the partial order of its steps, the state after each, and what is in flight at any cut.

A journal has what came in (actions, messages) and what went out, not the states in between. They are worked out by
replaying a node's own steps through the application: a node's state depends on nothing else, so only nodes that
somebody asks about are replayed. An *epoch* of the journal, the time between two restarts, is a run of its own.

A `Run` is how a journal is read, whether a simulator wrote it or live processes did:

- `order` has the steps as they happened, `event`, `sends` and `cause` say what each one was, and where its message came
  from: steps are named by their node and a number from 1;
- a cut is a tuple of such numbers, one for each node; `computation` knows which cuts are consistent, and which steps
  can be added to one; `cut` gives its states and what was in flight;
- `snapshots` are the cuts that were recorded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property

from strobe.model.app import Application
from strobe.model.cut import Cut, Json, Message
from strobe.model.errors import Failed, Misuse
from strobe.model.events import Internal, Received, Recorded, Sent
from strobe.model.graph import Graph
from strobe.model.ids import ChannelId, NodeId, SnapshotId
from strobe.predicates.computation import Computation, Positions, Step
from strobe.predicates.faithful import Cause, Watched
from strobe.verify.causality import legal_order
from strobe.verify.history import Epoch, History
from strobe.verify.journal import Journal

__all__ = ["Run", "run_of"]


@dataclass(frozen=True)
class _Travel:
    """A message's way: between two steps of the run, where 0 is before the run and None is not in it."""

    message: Message
    sent: int
    received: int | None


@dataclass(frozen=True)
class Run:
    computation: Computation
    graph: Graph
    app: Application
    history: History
    epoch: Epoch
    compared: bool  # every replayed step is compared with the journal: the application may not be deterministic
    _causes: dict[NodeId, list[Cause]]
    _states: dict[NodeId, list[Json]] = field(default_factory=dict)
    _travels: dict[ChannelId, list[_Travel]] = field(default_factory=dict)

    def states(self, node: NodeId) -> Sequence[Json]:
        """The node's states, from the one in which the run began."""
        if node not in self._states:
            self._states[node] = self._replay(node)
        return self._states[node]

    @cached_property
    def order(self) -> tuple[tuple[NodeId, int], ...]:
        """All steps, each with its number on its node: as they stand in the journal, causes before effects."""
        counts = dict.fromkeys(self.graph.nodes, 0)
        steps = []
        for position in legal_order(self.history, self.epoch):
            event = self.history.events[position]
            assert isinstance(event, Internal | Received)
            counts[event.node] += 1
            steps.append((event.node, counts[event.node]))
        return tuple(steps)

    def event(self, node: NodeId, number: int) -> Cause:
        """What the node's step was, from 1: an action of its own, or the receipt of a message."""
        return self._causes[node][number - 1]

    def sends(self, node: NodeId, number: int) -> tuple[Sent, ...]:
        """What it sent in that step."""
        return self._sends.get((node, self._causes[node][number - 1].step), ())

    def cause(self, node: NodeId, number: int) -> tuple[NodeId, int] | None:
        """The step that sent what this one received; None if it received nothing, or what was in flight before."""
        need = self.computation.needs[self.computation.nodes.index(node)][number - 1]
        return None if need is None else (self.computation.nodes[need[0]], need[1])

    def at_step(self, node: NodeId, step: int) -> int:
        """How many steps of the node the journal has up to its number `step`."""
        return bisect_right(self._causes[node], step, key=_step)

    @cached_property
    def snapshots(self) -> dict[SnapshotId, Positions]:
        """Where the complete snapshots of this run lie."""
        found = {}
        for _, cut, epoch in self.history.cuts():
            if epoch is self.epoch and len(records := epoch.records[cut.snapshot]) == len(self.graph.nodes):
                recorded = {node: self.history.events[at[0]] for node, at in records.items()}
                found[cut.snapshot] = tuple(
                    self.at_step(node, event.step)
                    for node in self.computation.nodes
                    if isinstance(event := recorded[node], Recorded)
                )
        return found

    @cached_property
    def _sends(self) -> dict[tuple[NodeId, int], tuple[Sent, ...]]:
        found: dict[tuple[NodeId, int], tuple[Sent, ...]] = {}
        for position in sorted(p for positions in self.epoch.sends.values() for p in positions):
            sent = self.history.events[position]
            assert isinstance(sent, Sent)
            found[sent.node, sent.step] = (*found.get((sent.node, sent.step), ()), sent)
        return found

    def step(self, node: NodeId, number: int) -> int:
        """The journal's number of the node's step; that of state 0 is the step before the first."""
        causes = self._causes[node]
        return causes[number - 1].step if number else (causes[0].step - 1 if causes else 0)

    def cut(self, positions: Positions) -> Cut:
        """The global state at a consistent cut: states and messages in flight."""
        at = dict(zip(self.computation.nodes, positions, strict=True))
        return Cut(
            SnapshotId(0),
            {node: self.states(node)[count] for node, count in at.items()},
            {
                channel.id: tuple(
                    travel.message
                    for travel in self._on(channel.id)
                    if travel.sent <= at[channel.source]
                    and (travel.received is None or travel.received > at[channel.target])
                )
                for channel in self.graph.channels
            },
        )

    def _replay(self, node: NodeId) -> list[Json]:
        if self.compared:
            return Watched(self.history, self.epoch, self.app, node, self._causes[node]).states()
        state = deepcopy(self.epoch.states[node])
        states = [state]
        for cause in self._causes[node]:
            try:
                if isinstance(cause, Internal):
                    state, _ = self.app.act(node, state, cause.action)
                else:
                    payload = self.history.payload(self.epoch, cause.channel, cause.seq)
                    state, _ = self.app.receive(node, state, cause.channel, payload)
            except Exception as error:  # the application is somebody else's code: whatever it raises is its answer
                raise Failed(
                    f"The application refuses step {cause.step} of {node}: {type(error).__name__}: {error}.",
                    next="`strobe sim verify` says where journal and application part.",
                ) from error
            states.append(state)
        return states

    def _on(self, channel: ChannelId) -> list[_Travel]:
        if channel not in self._travels:
            history, epoch = self.history, self.epoch
            index = {c.step: i for i, c in enumerate(self._causes[self.graph.by_id[channel].source], 1)}
            target = {c.step: i for i, c in enumerate(self._causes[self.graph.by_id[channel].target], 1)}
            lost = history.losses(epoch, channel)
            travels = []
            for seq, position in history.sender(epoch, channel).items():
                receipts = [history.events[p] for p in history.receipts(epoch, channel).get(seq, ())]
                received = [target[r.step] for r in receipts if isinstance(r, Received)]
                if not received and seq in lost:
                    continue
                sent = history.events[position] if position >= 0 else None
                travels.append(
                    _Travel(
                        Message(seq, history.payload(epoch, channel, seq)),
                        index[sent.step] if isinstance(sent, Sent) else 0,
                        max(received, default=None),
                    )
                )
            self._travels[channel] = travels
        return self._travels[channel]


def run_of(journal: Journal | History, app: Application, epoch: int | None = None, *, compared: bool = False) -> Run:
    """The run of one epoch, by its number from 1; without a number, of the only one. `compared`: the application is a
    user's code, and each of its steps is compared with the journal."""
    history = journal if isinstance(journal, History) else History(journal)
    if epoch is None and len(history.epochs) > 1:
        raise Misuse(
            f"The system was restarted {len(history.epochs) - 1} times: that makes {len(history.epochs)} runs.",
            untouched="Nothing was looked at.",
            next=f"Say which, from 1 to {len(history.epochs)}: --epoch N.",
        )
    if epoch is not None and not 1 <= epoch <= len(history.epochs):
        raise Misuse(f"There is no epoch {epoch} in this journal.", next=f"It has {len(history.epochs)}.")
    chosen = history.epochs[(epoch or 1) - 1]
    causes: dict[NodeId, list[Cause]] = {node: [] for node in history.graph.nodes}
    for position in chosen.steps:
        cause = history.events[position]
        assert isinstance(cause, Internal | Received)
        causes[cause.node].append(cause)
    return Run(_computation(history, chosen, causes), history.graph, app, history, chosen, compared, causes)


def _step(cause: Cause) -> int:
    return cause.step


def _computation(history: History, epoch: Epoch, causes: dict[NodeId, list[Cause]]) -> Computation:
    nodes = history.graph.nodes
    index = {node: i for i, node in enumerate(nodes)}
    first = {node: found[0].step for node, found in causes.items() if found}
    needs: list[tuple[Step | None, ...]] = []
    for node in nodes:
        mine: list[Step | None] = []
        for cause in causes[node]:
            need: Step | None = None
            if isinstance(cause, Received):
                position = history.sender(epoch, cause.channel).get(cause.seq, -1)
                sent = history.events[position] if position >= 0 else None
                if isinstance(sent, Sent) and sent.node != node:
                    need = (index[sent.node], sent.step - first[sent.node] + 1)
            mine.append(need)
        needs.append(tuple(mine))
    computation = Computation(nodes, tuple(len(causes[node]) for node in nodes), tuple(needs))
    for _ in computation.order():
        pass  # raises if causes and effects form a loop
    return computation

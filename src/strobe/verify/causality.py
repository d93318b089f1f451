"""Happens-before (Lamport 1978) over a journal.

Theory
------
Steps are atomic, so the relation is one between steps: a step happens before a later one of the same node, a step that
sends a message happens before the step that receives it, and what follows by chaining. A recording or a marker stands
between two steps. Markers are not messages of the application and order nothing here.

The *clock* of an event holds, for each node, the last step that happens before it or contains it: its vector clock. A
table of all clocks would need nodes x events numbers. A clock is found when asked for, by walking back from the
event: each receipt in its past is looked at once, and what is kept is one number per node. A shortest chain of
messages visits no node twice (a node's own order is a shortcut), so the walk, which goes message by message, also ends
after as many rounds as there are nodes.

`legal_order` is the other face of the relation: an order of all steps in which every cause precedes its effects.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from strobe.model.errors import Failed, Misuse
from strobe.model.events import Internal, Received, Sent
from strobe.model.ids import NodeId
from strobe.verify.history import Epoch, History, NodeEvent
from strobe.verify.journal import Journal

__all__ = ["CausalLoop", "Causality", "legal_order"]


class CausalLoop(Failed):
    """No order of the steps is possible: each of these receipts waits for the next one's node to send."""

    def __init__(self, what: str, receipts: tuple[int, ...]) -> None:
        super().__init__(what)
        self.receipts = receipts


class _Link(NamedTuple):
    """A message from step to step."""

    received_in: int
    sender: NodeId
    sent_in: int
    sent_at: int
    received_at: int


class _Reached(NamedTuple):
    """From steps of a node up to `step` the event can be reached with a chain that begins with `link`."""

    step: int
    link: _Link | None
    receiver: NodeId | None


class Causality:
    """Events are named by their position in `journal.events`, and compared within one epoch."""

    def __init__(self, journal: Journal | History) -> None:
        self.history = journal if isinstance(journal, History) else History(journal)
        self._starts = [epoch.restart or 0 for epoch in self.history.epochs]
        self._links: dict[int, dict[NodeId, list[_Link]]] = {}
        self._pasts: dict[int, dict[NodeId, list[_Reached]]] = {}

    def happens_before(self, first: int, second: int) -> bool:
        """Whether the event at `first` can have influenced the one at `second`."""
        a, b = self._event(first), self._event(second)
        self._same_epoch(first, second)
        if a.node == b.node:
            return first < second
        reached = self._past(second).get(a.node)
        return reached is not None and reached[-1].step >= _earliest(a)

    def concurrent(self, first: int, second: int) -> bool:
        return first != second and not self.happens_before(first, second) and not self.happens_before(second, first)

    def clock(self, position: int) -> Mapping[NodeId, int]:
        """The last step of each node in the event's past; a node that is absent has none there."""
        return {node: reached[-1].step for node, reached in self._past(position).items()}

    def chain(self, first: int, second: int) -> tuple[int, ...]:
        """Why the one happens before the other: both events, and between them the sends and receipts of the fewest
        messages that link them. Empty if it does not."""
        if not self.happens_before(first, second):
            return ()
        a, b = self._event(first), self._event(second)
        if a.node == b.node:
            return first, second
        past, chain = self._past(second), [first]
        node, step = a.node, _earliest(a)
        while True:
            # The first entry that covers the step was found in the earliest round: the fewest messages from here.
            found = next(reached for reached in past[node] if reached.step >= step)
            if found.link is None or found.receiver is None:
                break
            chain += [found.link.sent_at, found.link.received_at]
            node, step = found.receiver, found.link.received_in
        chain.append(second)
        return tuple(p for i, p in enumerate(chain) if i == 0 or p != chain[i - 1])

    def tell(self, chain: tuple[int, ...]) -> str:
        """The chain in words."""
        parts = []
        for position in chain:
            event = self._event(position)
            if isinstance(event, Sent):
                parts.append(f"{event.node} sends message {event.seq} on {event.channel} (step {event.step})")
            elif isinstance(event, Received):
                parts.append(f"{event.node} receives message {event.seq} on {event.channel} (step {event.step})")
            elif isinstance(event, Internal):
                parts.append(f"{event.node} acts (step {event.step})")
            else:
                parts.append(f"{event.node} {_BETWEEN[type(event).__name__]} (after step {event.step})")
        return ", then ".join(parts)

    # ── the walk ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _past(self, position: int) -> dict[NodeId, list[_Reached]]:
        """For each node in the event's past: how far, with ever more messages. Steps rise along each list."""
        known = self._pasts.get(position)
        if known is not None:
            return known
        event = self._event(position)
        links = self._links_of(self.history.epochs[self._epoch(position)])
        past: dict[NodeId, list[_Reached]] = {event.node: [_Reached(event.step, None, None)]}
        used: dict[NodeId, int] = {}
        frontier = [event.node]  # a list, so that of equally good chains always the same one is found
        while frontier:
            found: dict[NodeId, _Reached] = {}
            for node in frontier:
                inbound = links.get(node, [])
                start, end = used.get(node, 0), bisect_right(inbound, past[node][-1].step, key=_received_in)
                used[node] = max(start, end)
                for link in inbound[start:end]:
                    best = found.get(link.sender)
                    if best is None or link.sent_in > best.step:
                        found[link.sender] = _Reached(link.sent_in, link, node)
            frontier = []
            for node, reached in found.items():
                if node not in past or reached.step > past[node][-1].step:
                    past.setdefault(node, []).append(reached)
                    frontier.append(node)
        if len(self._pasts) >= 1024:
            self._pasts.clear()
        self._pasts[position] = past
        return past

    def _links_of(self, epoch: Epoch) -> dict[NodeId, list[_Link]]:
        if epoch.number not in self._links:
            links: dict[NodeId, list[_Link]] = {}
            events = self.history.events
            for position in epoch.steps:
                receipt = events[position]
                if isinstance(receipt, Received):
                    sent_at = self.history.sender(epoch, receipt.channel).get(receipt.seq, -1)
                    if sent_at >= 0:  # otherwise it was in flight when the epoch began, or comes from nowhere
                        sent = events[sent_at]
                        assert isinstance(sent, Sent)
                        link = _Link(receipt.step, sent.node, sent.step, sent_at, position)
                        links.setdefault(receipt.node, []).append(link)
            self._links[epoch.number] = links
        return self._links[epoch.number]

    def _event(self, position: int) -> NodeEvent:
        event = self.history.events[position]
        if not isinstance(event, NodeEvent):
            raise Misuse(
                f"A {type(event).__name__} is not an event of a node: it happens neither before nor after one.",
                next="Compare sends, receipts, internal actions, recordings or markers.",
            )
        return event

    def _epoch(self, position: int) -> int:
        return bisect_right(self._starts, position) - 1

    def _same_epoch(self, first: int, second: int) -> None:
        if self._epoch(first) != self._epoch(second):
            raise Misuse(
                f"The events at {first} and {second} belong to different incarnations of the system.",
                next="Compare events between the same two restarts.",
            )


_BETWEEN = {"Recorded": "records", "MarkerSent": "sends a marker", "MarkerReceived": "receives a marker"}


def _received_in(link: _Link) -> int:
    return link.received_in


def _earliest(event: NodeEvent) -> int:
    """The first step of its node that comes with or after the event."""
    return event.step if isinstance(event, Internal | Sent | Received) else event.step + 1


# ── a legal order ───────────────────────────────────────────────────────────────────────────────────────────────────


def legal_order(history: History, epoch: Epoch) -> list[int]:
    """The epoch's steps, each named by the position of its first event, causes before effects.

    The journal's own order if it is legal (a simulator's always is), otherwise the legal order nearest to it.
    """
    events = history.events
    causes: dict[int, int] = {}  # a receipt whose send stands behind it in the journal, and that send
    for position in epoch.steps:
        event = events[position]
        if event.__class__ is Received:
            sent_at = history.sender(epoch, event.channel).get(event.seq, -1)
            if sent_at > position:
                causes[position] = sent_at
    return _sort(history, epoch, causes) if causes else list(epoch.steps)


def _sort(history: History, epoch: Epoch, causes: Mapping[int, int]) -> list[int]:
    """A merge of the nodes' queues that takes the step that stands first in the journal, among those that may go.

    Only receipts in `causes` can have to wait: any other message was sent further up, but its step may itself have
    been held back, so every receipt is asked.
    """
    events, done = history.events, dict[NodeId, int]()
    queues: dict[NodeId, list[int]] = {}
    for position in reversed(epoch.steps):
        queues.setdefault(events[position].node, []).append(position)  # type: ignore[union-attr]
    waiting: dict[NodeId, list[tuple[int, int]]] = {}  # by sender: (the step that must be done, the receipt)
    ready = [queue[-1] for queue in queues.values()]
    heapify(ready)
    order: list[int] = []
    while ready:
        position = heappop(ready)
        event = events[position]
        assert isinstance(event, Internal | Received)
        if isinstance(event, Received):
            sent_at = history.sender(epoch, event.channel).get(event.seq, -1)
            if sent_at >= 0:
                sent = events[sent_at]
                assert isinstance(sent, Sent)
                if done.get(sent.node, -1) < sent.step:
                    heappush(waiting.setdefault(sent.node, []), (sent.step, position))
                    continue
        order.append(position)
        done[event.node] = event.step
        queues[event.node].pop()
        if queues[event.node]:
            heappush(ready, queues[event.node][-1])
        held = waiting.get(event.node, [])
        while held and held[0][0] <= event.step:
            heappush(ready, heappop(held)[1])
    if len(order) < len(epoch.steps):
        raise _loop(history, epoch, {q[-1] for q in queues.values() if q})
    return order


def _loop(history: History, epoch: Epoch, stuck: set[int]) -> CausalLoop:
    """Every node with steps left waits for a send of another such node (or of itself): follow them round."""
    by_node = {history.events[p].node: p for p in stuck}  # type: ignore[union-attr]
    path: list[int] = []
    position = min(stuck)
    while position not in path:
        path.append(position)
        receipt = history.events[position]
        assert isinstance(receipt, Received)
        sent = history.events[history.sender(epoch, receipt.channel)[receipt.seq]]
        assert isinstance(sent, Sent)
        if sent.node not in by_node:
            break
        position = by_node[sent.node]
    receipts = tuple(path[path.index(position) :] if position in path else path)
    parts = []
    for p in receipts:
        receipt = history.events[p]
        assert isinstance(receipt, Received)
        sent = history.events[history.sender(epoch, receipt.channel)[receipt.seq]]
        assert isinstance(sent, Sent)
        parts.append(
            f"{receipt.node} received message {receipt.seq} on {receipt.channel} in step {receipt.step}, "
            f"which {sent.node} sent in step {sent.step}"
        )
    return CausalLoop(
        f"These steps wait for each other, so no order of them is possible: {'; '.join(parts)}.", receipts
    )

"""The run itself: do the journal's lines tell of something that nodes and channels can do?

Law 1 is about cuts; these are the rules that it takes for granted. Nodes count their steps one by one, begin each with
one internal action or one receipt, and record between steps. Channels number their messages one by one, deliver only
what was sent, once, and in order where they promise it. Some order of all steps puts causes before effects. A restart
begins from the snapshot that it names.

A channel may be allowed to lose or duplicate. Still, a message that is received twice breaks law 3, and is reported; a
lost one is reported for the cuts that miss it.
"""

from __future__ import annotations

from collections.abc import Iterator

from strobe.model.cut import Cut, Message, canonical
from strobe.model.events import (
    Completed,
    Event,
    Internal,
    MarkerReceived,
    MarkerSent,
    Received,
    Recorded,
    Restarted,
    Sent,
)
from strobe.model.graph import Channel
from strobe.model.ids import ChannelId, SnapshotId
from strobe.verify.causality import CausalLoop, legal_order
from strobe.verify.explain import name_of
from strobe.verify.history import Epoch, History
from strobe.verify.lines import cut_to_json
from strobe.verify.violation import Place, Rule, Violation

__all__ = ["check_run"]


def check_run(history: History) -> Iterator[Violation]:
    yield from _steps(history)
    for epoch in history.epochs:
        for channel in history.graph.channels:
            yield from _numbers(history, epoch, channel)
            yield from _deliveries(history, epoch, channel)
        try:
            legal_order(history, epoch)
        except CausalLoop as loop:
            first, *rest = (Place(p, history.events[p]) for p in loop.receipts)
            yield Violation(Rule.CAUSAL_LOOP, loop.what, first=first, second=rest[0] if rest else None)
    yield from _restarts(history)


# ── nodes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Progress:
    """How far a node has come. `counting` is off between a restart and the first step after it: the count may jump."""

    __slots__ = ("counting", "last", "open", "step")

    def __init__(self) -> None:
        self.step = 0
        self.counting = True
        self.open = False  # the present step may still send
        self.last: int | None = None  # the position of the node's last line


def _steps(history: History) -> Iterator[Violation]:
    nodes = {node: _Progress() for node in history.graph.nodes}
    by_id = history.graph.by_id
    for position, event in enumerate(history.events):
        if isinstance(event, Sent):
            progress = nodes.get(event.node)
            if progress is None or by_id[event.channel].source != event.node:
                yield _wrong_end(history, position, by_id[event.channel])
            elif event.step != progress.step or not progress.open:
                yield _step_order(history, position, progress, "sends outside of a step")
            else:
                progress.last = position
        elif isinstance(event, Internal | Received):
            progress = nodes.get(event.node)
            if isinstance(event, Received) and by_id[event.channel].target != event.node:
                yield _wrong_end(history, position, by_id[event.channel])
            if progress is None:
                yield _unknown_node(position, event)
                continue
            if event.step != progress.step + 1 and (progress.counting or event.step <= progress.step):
                yield _step_order(history, position, progress, "begins a step")
            progress.step, progress.open, progress.counting, progress.last = event.step, True, True, position
        elif isinstance(event, Recorded | MarkerSent | MarkerReceived):
            progress = nodes.get(event.node)
            if progress is None:
                yield _unknown_node(position, event)
                continue
            progress.open = False
            if event.step != progress.step and (progress.counting or event.step < progress.step):
                yield Violation(
                    Rule.RECORD_ORDER,
                    f"{event.node} {_DOES[event.__class__]} for snapshot {event.snapshot} after step {event.step}, "
                    f"says the journal (line {position + 2}), but at that point it had done {progress.step} steps.",
                    snapshot=event.snapshot,
                    node=event.node,
                    first=_at(history, progress.last),
                    second=Place(position, event),
                )
            elif not progress.counting:
                progress.step = event.step
            progress.last = position
        elif isinstance(event, Restarted):
            for progress in nodes.values():
                progress.counting = progress.open = False


_DOES = {Recorded: "recorded", MarkerSent: "sent a marker", MarkerReceived: "received a marker"}


def _at(history: History, position: int | None) -> Place | None:
    return None if position is None else Place(position, history.events[position])


def _step_order(history: History, position: int, progress: _Progress, what: str) -> Violation:
    event = history.events[position]
    assert isinstance(event, Internal | Sent | Received)
    expected = (
        f"step {progress.step} is the last one that it began, and after a recording or a marker it is over"
        if isinstance(event, Sent)
        else f"its next step is {progress.step + 1}"
    )
    return Violation(
        Rule.STEP_ORDER,
        f"{event.node} {what} with number {event.step} (line {position + 2}), but {expected}: lines are missing, or "
        "stand in the wrong order.",
        node=event.node,
        channel=None if isinstance(event, Internal) else event.channel,
        first=_at(history, progress.last),
        second=Place(position, event),
    )


def _unknown_node(position: int, event: Event) -> Violation:
    return Violation(
        Rule.UNKNOWN_NAME,
        f"The journal (line {position + 2}) has an event of {event.node!r}, "  # type: ignore[union-attr]
        "which is not a node of the graph.",
        second=Place(position, event),
    )


def _wrong_end(history: History, position: int, channel: Channel) -> Violation:
    event = history.events[position]
    assert isinstance(event, Sent | Received)
    does, end = ("sent", channel.source) if isinstance(event, Sent) else ("received", channel.target)
    return Violation(
        Rule.WRONG_END,
        f"{event.node} {does} message {event.seq} on {name_of(channel)} (step {event.step}), but only {end} can.",
        channel=channel.id,
        node=event.node,
        second=Place(position, event),
    )


# ── channels ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _numbers(history: History, epoch: Epoch, channel: Channel) -> Iterator[Violation]:
    """The first epoch numbers from 1; after a restart the numbers may jump, but only upward."""
    events = history.events
    last = max((m.seq for m in epoch.contents.get(channel.id, ())), default=0)
    first = epoch.number > 1
    before: int | None = None
    for position in epoch.sends[channel.id]:
        seq: int = events[position].seq  # type: ignore[union-attr]
        if seq != last + 1 and not (first and seq > last):
            event = events[position]
            assert isinstance(event, Sent)
            yield Violation(
                Rule.SEQ_ORDER,
                f"{channel.source} sent message {seq} on {name_of(channel)} (step {event.step}), but the next number "
                f"there is {last + 1}.",
                channel=channel.id,
                message=Message(seq, event.payload),
                first=_at(history, before),
                second=Place(position, event),
            )
        last, before, first = seq, position, False


def _deliveries(history: History, epoch: Epoch, channel: Channel) -> Iterator[Violation]:
    """Each receipt is of a message that was sent, the first of that message, and in order if the channel keeps it."""
    events, fifo = history.events, history.header.order == "fifo"
    receives = epoch.receives[channel.id]
    if not receives:
        return
    sender = history.sender(epoch, channel.id)
    received: dict[int, int] = {}  # by seq, the position of the first receipt
    highest, highest_at = -1, -1
    for position in receives:
        seq: int = events[position].seq  # type: ignore[union-attr]
        if seq > highest and seq in sender:  # the good case: sent, in order, and hence for the first time
            highest, highest_at = seq, position
            received[seq] = position
            continue
        event = events[position]
        assert isinstance(event, Received)
        what = f"{channel.target} received message {seq} on {name_of(channel)} (step {event.step})"
        second = Place(position, event)
        if seq not in sender:
            yield _unsent(history, epoch, channel, seq, what, second)
        elif seq in received:
            first = Place(received[seq], events[received[seq]])
            yield Violation(
                Rule.DUPLICATE_DELIVERY,
                f"{what}, but it had received it before (step {_step(first)}): the channel delivered it twice.",
                channel=channel.id,
                message=Message(seq, history.payload(epoch, channel.id, seq)),
                first=first,
                second=second,
            )
        else:
            received[seq] = position
            if fifo:
                first = Place(highest_at, events[highest_at])
                yield Violation(
                    Rule.FIFO_ORDER,
                    f"{what} after message {highest} (step {_step(first)}), which {channel.source} sent later: the "
                    "channel did not keep its order.",
                    channel=channel.id,
                    message=Message(seq, history.payload(epoch, channel.id, seq)),
                    first=first,
                    second=second,
                )


def _step(place: Place) -> int:
    assert isinstance(place.event, Received)
    return place.event.step


def _unsent(history: History, epoch: Epoch, channel: Channel, seq: int, what: str, second: Place) -> Violation:
    for older in reversed(history.epochs[: epoch.number - 1]):
        position = history.sender(older, channel.id).get(seq, -1)
        if position >= 0:
            sent = history.events[position]
            assert isinstance(sent, Sent)
            return Violation(
                Rule.STALE_MESSAGE,
                f"{what}, but {channel.source} sent it in incarnation {older.number} (step {sent.step}), and the "
                f"restart into incarnation {epoch.number} did not bring it back: it should have been fenced off.",
                channel=channel.id,
                message=Message(seq, sent.payload),
                first=Place(position, sent),
                second=second,
            )
    return Violation(
        Rule.RECEIVE_WITHOUT_SEND,
        f"{what}, but {channel.source} never sent it.",
        channel=channel.id,
        message=Message(seq, None),
        second=second,
    )


# ── restarts ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _restarts(history: History) -> Iterator[Violation]:
    """A restart from a snapshot of another journal cannot be compared; all others must hold exactly what it held."""
    empty: dict[ChannelId, tuple[Message, ...]] = dict.fromkeys(history.graph.by_id, ())
    known: dict[SnapshotId, tuple[Cut, Place | None]] = {
        SnapshotId(0): (Cut(SnapshotId(0), history.header.initial, empty), None)
    }
    for position, event in enumerate(history.events) if len(history.epochs) > 1 else ():
        if isinstance(event, Completed):
            known[event.cut.snapshot] = event.cut, Place(position, event)
        elif isinstance(event, Restarted):
            cut = event.cut
            place = Place(position, event)
            missing = [node for node in history.graph.nodes if node not in cut.states]
            if missing:
                yield Violation(
                    Rule.RESTART_CUT,
                    f"The restart into incarnation {event.incarnation} has no state for {', '.join(missing)}.",
                    snapshot=cut.snapshot,
                    node=missing[0],
                    second=place,
                )
            elif cut.snapshot in known:
                origin, first = known[cut.snapshot]
                difference = _difference(origin, cut)
                if difference:
                    yield Violation(
                        Rule.RESTART_CUT,
                        f"The restart into incarnation {event.incarnation} says that it began from snapshot "
                        f"{cut.snapshot}, but {difference} differs from what that snapshot holds.",
                        snapshot=cut.snapshot,
                        first=first,
                        second=place,
                    )


def _difference(origin: Cut, cut: Cut) -> str:
    for node, state in cut.states.items():
        if node not in origin.states or canonical(state) != canonical(origin.states[node]):
            return f"the state of {node}"
    a, b = (cut_to_json(c)["channels"] for c in (origin, cut))
    for channel in sorted(a.keys() | b.keys()):
        if canonical(a.get(channel, [])) != canonical(b.get(channel, [])):
            return f"the content of {channel}"
    return ""

"""Law 1, checked: is a snapshot a consistent cut, and does it hold exactly what was in flight?

Theory
------
Give every message of a channel P→Q a balance at the cut: +1 if P had sent it when P recorded, -1 for each time that Q
had received it when Q recorded. Law 1 says that the recorded content is the balance, message by message: what was sent
and not yet received is there once, everything else is not there, and nothing is below zero (that would be an effect
without its cause). One comparison thus covers channels that keep order, reorder, lose and duplicate; which rule is
broken is asked only where it fails.

Between two snapshots the balance changes by what was sent and received in between, so checking all snapshots of a
journal costs one pass over it, plus what they hold.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from strobe.model.cut import Cut, Json, Message
from strobe.model.events import Event
from strobe.model.graph import Channel
from strobe.model.ids import ChannelId, NodeId, SnapshotId
from strobe.verify.explain import Teller, name_of, same, step_of, text_of
from strobe.verify.history import Epoch, History
from strobe.verify.journal import Journal
from strobe.verify.markers import check_markers
from strobe.verify.structure import check_run
from strobe.verify.violation import Place, Rule, Violation

__all__ = ["Checked", "Report", "Rule", "Violation", "check_cut", "check_journal"]


@dataclass(frozen=True)
class Checked:
    """One completed snapshot: what it holds and how it did."""

    snapshot: SnapshotId
    incarnation: int  # the epoch of its records, counted from 1; 0 if there are none
    in_flight: int
    markers: int
    violations: int


@dataclass(frozen=True)
class Report:
    """A whole journal."""

    violations: tuple[Violation, ...]
    snapshots: tuple[Checked, ...]
    unfinished: tuple[SnapshotId, ...]  # recorded somewhere, never completed: no fault, and nothing to check
    epochs: int
    events: int
    steps: int
    sent: int
    received: int
    lost: int
    duplicated: int
    markers_sent: int
    markers_received: int

    @property
    def ok(self) -> bool:
        return not self.violations

    @property
    def sentence(self) -> str:
        """The verdict."""
        count = len(self.snapshots)
        snapshots = "1 snapshot" if count == 1 else f"{count} snapshots"
        if self.ok:
            return f"{snapshots} checked over {self.events} events: every one is a consistent cut."
        bad = len(self.violations)
        return (
            f"{snapshots} checked over {self.events} events: {bad} violation{'s' if bad > 1 else ''}. "
            f"The first: {self.violations[0].sentence}"
        )

    def to_json(self) -> dict[str, Json]:
        return {
            "ok": self.ok,
            "sentence": self.sentence,
            "events": self.events,
            "epochs": self.epochs,
            "steps": self.steps,
            "sent": self.sent,
            "received": self.received,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "markers_sent": self.markers_sent,
            "markers_received": self.markers_received,
            "unfinished": list(self.unfinished),
            "snapshots": [
                {
                    "snapshot": c.snapshot,
                    "incarnation": c.incarnation,
                    "in_flight": c.in_flight,
                    "markers": c.markers,
                    "violations": c.violations,
                }
                for c in self.snapshots
            ],
            "violations": [v.to_json() for v in self.violations],
        }


def check_cut(journal: Journal | History, cut: Cut) -> tuple[Violation, ...]:
    """Law 1 for one snapshot, against a journal whose run is right otherwise (`check_journal` checks that too)."""
    history = journal if isinstance(journal, History) else History(journal)
    return tuple(_Cuts(history).check(cut, history.epoch_of(cut)))


def check_journal(journal: Journal | History) -> Report:
    """The run, every completed snapshot, and the markers."""
    history = journal if isinstance(journal, History) else History(journal)
    violations = list(check_run(history))
    cuts, snapshots = _Cuts(history), list[Checked]()
    finished = set[tuple[int, SnapshotId]]()
    for position, cut, epoch in history.cuts():
        found = list(cuts.check(cut, epoch))
        number = 0 if epoch is None else epoch.number
        if (number, cut.snapshot) in finished:
            found.append(
                Violation(
                    Rule.COMPLETED_TWICE,
                    f"Snapshot {cut.snapshot} was completed twice in one incarnation.",
                    snapshot=cut.snapshot,
                    second=Place(position, history.events[position]),
                )
            )
        finished.add((number, cut.snapshot))
        found += check_markers(history, epoch, cut.snapshot)
        markers = 0 if epoch is None else sum(map(len, epoch.markers_sent.get(cut.snapshot, {}).values()))
        held = sum(map(len, cut.channels.values()))
        snapshots.append(Checked(cut.snapshot, number, held, markers, len(found)))
        violations += found
    recorded = {(e.number, s) for e in history.epochs for s in e.records}
    return Report(
        violations=tuple(violations),
        snapshots=tuple(snapshots),
        unfinished=tuple(sorted({s for _, s in recorded - finished})),
        epochs=len(history.epochs),
        events=len(history.events),
        steps=sum(len(e.steps) for e in history.epochs),
        sent=_count(e.sends for e in history.epochs),
        received=_count(e.receives for e in history.epochs),
        lost=_count(e.lost for e in history.epochs),
        duplicated=_count(e.duplicated for e in history.epochs),
        markers_sent=sum(_count(e.markers_sent.values()) for e in history.epochs),
        markers_received=sum(_count(e.markers_received.values()) for e in history.epochs),
    )


def _count(groups: Iterable[dict[ChannelId, list[int]]]) -> int:
    return sum(len(positions) for group in groups for positions in group.values())


class _Balance:
    """The balance of one channel in one epoch, at the point where it was last asked for."""

    def __init__(self, events: Sequence[Event], epoch: Epoch, channel: ChannelId) -> None:
        self.events = events
        self.sends = epoch.sends.get(channel, [])
        self.receives = epoch.receives.get(channel, [])
        self.of: dict[int, int] = dict(Counter(m.seq for m in epoch.contents.get(channel, ())))
        self.sent = self.received = 0

    def at(self, sender_step: int, receiver_step: int) -> dict[int, int]:
        """By seq, zeros left out."""
        events = self.events
        sent = bisect_right(self.sends, sender_step, key=lambda p: events[p].step)  # type: ignore[union-attr]
        received = bisect_right(self.receives, receiver_step, key=lambda p: events[p].step)  # type: ignore[union-attr]
        self._move(self.sends, self.sent, sent, 1)
        self._move(self.receives, self.received, received, -1)
        self.sent, self.received = sent, received
        return self.of

    def _move(self, positions: list[int], start: int, end: int, sign: int) -> None:
        if end < start:  # this snapshot was recorded earlier than the one asked for before
            start, end, sign = end, start, -sign
        events, of = self.events, self.of
        for position in positions[start:end]:
            seq = events[position].seq  # type: ignore[union-attr]
            now = of.get(seq, 0) + sign
            if now:
                of[seq] = now
            else:
                del of[seq]


class _Cuts:
    def __init__(self, history: History) -> None:
        self.history = history
        self.fifo = history.header.order == "fifo"
        self._balances: dict[tuple[int, ChannelId], _Balance] = {}

    def check(self, cut: Cut, epoch: Epoch | None) -> Iterator[Violation]:
        graph, snapshot = self.history.graph, cut.snapshot
        records = {} if epoch is None else epoch.records[snapshot]
        yield from self._whole(cut, records)
        if epoch is None:
            return
        for channel in graph.channels:
            if channel.id in cut.channels and channel.source in records and channel.target in records:
                yield from self._channel(cut, epoch, channel)

    def _whole(self, cut: Cut, records: dict[NodeId, list[int]]) -> Iterator[Violation]:
        graph, snapshot = self.history.graph, cut.snapshot
        for node in graph.nodes:
            if node not in records:
                yield Violation(
                    Rule.MISSING_RECORD,
                    f"Snapshot {snapshot} is called complete, but {node} never recorded for it.",
                    snapshot=snapshot,
                    node=node,
                )
            elif len(records[node]) > 1:
                first, second = (Place(p, self.history.events[p]) for p in records[node][:2])
                yield Violation(
                    Rule.RECORDED_TWICE,
                    f"Snapshot {snapshot}: {node} recorded {len(records[node])} times, first after step "
                    f"{step_of(first)}, then after step {step_of(second)}: which state is meant?",
                    snapshot=snapshot,
                    node=node,
                    first=first,
                    second=second,
                )
            if node not in cut.states:
                yield Violation(
                    Rule.MISSING_STATE,
                    f"Snapshot {snapshot} is called complete, but holds no state for {node}.",
                    snapshot=snapshot,
                    node=node,
                )
        for channel in graph.channels:
            if channel.id not in cut.channels:
                yield Violation(
                    Rule.MISSING_CHANNEL,
                    f"Snapshot {snapshot} is called complete, but holds no content for channel {channel}, "
                    "not even an empty one.",
                    snapshot=snapshot,
                    channel=channel.id,
                )
        unknown = [(n, "node") for n in cut.states if n not in graph.nodes]
        for name, what in (*unknown, *((c, "channel") for c in cut.channels if c not in graph.by_id)):
            yield Violation(
                Rule.UNKNOWN_NAME,
                f"Snapshot {snapshot} names the {what} {name!r}, which the graph does not have.",
                snapshot=snapshot,
            )

    def _channel(self, cut: Cut, epoch: Epoch, channel: Channel) -> Iterator[Violation]:
        records = epoch.records[cut.snapshot]
        sender, receiver = (
            Place(records[end][0], self.history.events[records[end][0]]) for end in (channel.source, channel.target)
        )
        key = (epoch.number, channel.id)
        if key not in self._balances:
            self._balances[key] = _Balance(self.history.events, epoch, channel.id)
        balance = self._balances[key].at(step_of(sender), step_of(receiver))
        content = cut.channels[channel.id]
        if not content and not balance:
            return
        held = Counter(message.seq for message in content)
        wrong = {seq for seq in balance.keys() | held.keys() if balance.get(seq, 0) != held[seq]}
        if wrong:
            teller = Teller(self.history, epoch, channel, cut, sender, receiver, held)
            for seq in sorted(wrong):
                yield teller.explain(seq)
        for message in content:
            if message.seq not in wrong:
                sent = self.history.payload(epoch, channel.id, message.seq)
                if not same(message.payload, sent):
                    yield Violation(
                        Rule.ALTERED_MESSAGE,
                        f"Snapshot {cut.snapshot}: the recorded content of {name_of(channel)} holds message "
                        f"{message.seq} as {text_of(message.payload)}, but {channel.source} sent {text_of(sent)}.",
                        snapshot=cut.snapshot,
                        channel=channel.id,
                        message=message,
                    )
        if self.fifo:
            yield from self._order(cut, channel, content)

    def _order(self, cut: Cut, channel: Channel, content: tuple[Message, ...]) -> Iterator[Violation]:
        """Messages are numbered in the order of their sending, so the content's numbers must rise."""
        for before, after in pairwise(content):
            if before.seq > after.seq:
                yield Violation(
                    Rule.CONTENT_ORDER,
                    f"Snapshot {cut.snapshot}: in the recorded content of {name_of(channel)} message {before.seq} "
                    f"stands before message {after.seq}, but {channel.source} sent message {after.seq} first.",
                    snapshot=cut.snapshot,
                    channel=channel.id,
                    message=after,
                )
                return

"""A journal, arranged for the checkers: by epoch, and in it by channel and by snapshot.

An *epoch* is the life of one incarnation: it begins with the run or with a restart, from states and from messages that
are in flight already. Events are named by their *position* in `journal.events`; lists of positions keep the order of
the journal, which for the events of one node is the order in which they happened. Nothing here, and nothing built on
it, relies on the order of lines of different nodes within an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from strobe.model.cut import Cut, Json, Message
from strobe.model.errors import Misuse
from strobe.model.events import (
    Completed,
    Duplicated,
    Event,
    Internal,
    Lost,
    MarkerReceived,
    MarkerSent,
    Received,
    Recorded,
    Restarted,
    Sent,
)
from strobe.model.ids import ChannelId, NodeId, SnapshotId
from strobe.verify.journal import Journal

__all__ = ["Epoch", "History", "NodeEvent"]

NodeEvent: TypeAlias = Internal | Sent | Received | Recorded | MarkerSent | MarkerReceived


@dataclass
class Epoch:
    """Everything in here is a list of positions, filled once by `History` and only read afterwards."""

    number: int
    states: Mapping[NodeId, Json]
    contents: Mapping[ChannelId, tuple[Message, ...]]  # in flight when the epoch begins
    restart: int | None = None  # the position of the restart that began it
    steps: list[int] = field(default_factory=list)  # what begins a step: an internal action or a receipt
    sends: dict[ChannelId, list[int]] = field(default_factory=dict)
    receives: dict[ChannelId, list[int]] = field(default_factory=dict)
    records: dict[SnapshotId, dict[NodeId, list[int]]] = field(default_factory=dict)
    markers_sent: dict[SnapshotId, dict[ChannelId, list[int]]] = field(default_factory=dict)
    markers_received: dict[SnapshotId, dict[ChannelId, list[int]]] = field(default_factory=dict)
    lost: dict[ChannelId, list[int]] = field(default_factory=dict)
    duplicated: dict[ChannelId, list[int]] = field(default_factory=dict)


class History:
    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.header = journal.header
        self.graph = journal.header.graph
        self.events: Sequence[Event] = journal.events
        self.epochs: list[Epoch] = [Epoch(1, journal.header.initial, {})]
        self.completed: list[tuple[int, int]] = []  # (position, index of the epoch in which the line stands)
        self._senders: dict[tuple[int, ChannelId], dict[int, int]] = {}
        self._seqs: dict[tuple[str, int, ChannelId], dict[int, list[int]]] = {}
        try:
            self._arrange()
        except KeyError as error:
            raise Misuse(
                f"The journal has an event on channel {error.args[0]!r}, which its graph does not have."
            ) from None

    def _arrange(self) -> None:
        epoch = self.epochs[0]
        steps, sends, receives = epoch.steps, epoch.sends, epoch.receives
        for channel in self.graph.by_id:
            sends[channel], receives[channel] = [], []
        for position, event in enumerate(self.events):
            kind = event.__class__
            # Most frequent first; comparing classes is what keeps a million events within a second.
            if kind is Sent:
                sends[event.channel].append(position)  # type: ignore[union-attr]
            elif kind is Received:
                steps.append(position)
                receives[event.channel].append(position)  # type: ignore[union-attr]
            elif kind is Internal:
                steps.append(position)
            elif isinstance(event, Recorded):
                epoch.records.setdefault(event.snapshot, {}).setdefault(event.node, []).append(position)
            elif isinstance(event, MarkerSent):
                epoch.markers_sent.setdefault(event.snapshot, {}).setdefault(event.channel, []).append(position)
            elif isinstance(event, MarkerReceived):
                epoch.markers_received.setdefault(event.snapshot, {}).setdefault(event.channel, []).append(position)
            elif isinstance(event, Completed):
                self.completed.append((position, len(self.epochs) - 1))
            elif isinstance(event, Lost):
                epoch.lost.setdefault(event.channel, []).append(position)
            elif isinstance(event, Duplicated):
                epoch.duplicated.setdefault(event.channel, []).append(position)
            elif isinstance(event, Restarted):
                epoch = Epoch(len(self.epochs) + 1, event.cut.states, event.cut.channels, position)
                steps, sends, receives = epoch.steps, epoch.sends, epoch.receives
                for channel in self.graph.by_id:
                    sends[channel], receives[channel] = [], []
                self.epochs.append(epoch)

    def epoch_of(self, cut: Cut) -> Epoch | None:
        """The epoch that holds the cut's records. If the id was used again after a restart, the journal's own line
        for this very cut decides; without one it is the latest."""
        epochs = [e for e in self.epochs if cut.snapshot in e.records]
        if len(epochs) > 1:
            return next((epoch for _, known, epoch in self.cuts() if known == cut), epochs[-1])
        return epochs[0] if epochs else None

    def cuts(self) -> Iterator[tuple[int, Cut, Epoch | None]]:
        """Every completed snapshot: the position of its line, the cut, and the epoch of its records."""
        for position, index in self.completed:
            event = self.events[position]
            assert isinstance(event, Completed)
            # A merged journal may have the line behind a restart, but never ahead of the records.
            upto = reversed(self.epochs[: index + 1])
            yield position, event.cut, next((e for e in upto if event.cut.snapshot in e.records), None)

    def sender(self, epoch: Epoch, channel: ChannelId) -> Mapping[int, int]:
        """By seq: the position where the message was sent in this epoch; -1 if it was in flight when it began."""
        key = (epoch.number, channel)
        if key not in self._senders:
            found = {message.seq: -1 for message in epoch.contents.get(channel, ())}
            for position in epoch.sends.get(channel, ()):
                event = self.events[position]
                assert isinstance(event, Sent)
                found.setdefault(event.seq, position)
            self._senders[key] = found
        return self._senders[key]

    def receipts(self, epoch: Epoch, channel: ChannelId) -> Mapping[int, list[int]]:
        """By seq: where the message was received in this epoch."""
        return self._by_seq("receives", epoch, channel, epoch.receives)

    def losses(self, epoch: Epoch, channel: ChannelId) -> Mapping[int, list[int]]:
        return self._by_seq("lost", epoch, channel, epoch.lost)

    def duplicates(self, epoch: Epoch, channel: ChannelId) -> Mapping[int, list[int]]:
        return self._by_seq("duplicated", epoch, channel, epoch.duplicated)

    def _by_seq(
        self, what: str, epoch: Epoch, channel: ChannelId, positions: Mapping[ChannelId, list[int]]
    ) -> Mapping[int, list[int]]:
        key = (what, epoch.number, channel)
        if key not in self._seqs:
            found: dict[int, list[int]] = {}
            for position in positions.get(channel, ()):
                found.setdefault(self.events[position].seq, []).append(position)  # type: ignore[union-attr]
            self._seqs[key] = found
        return self._seqs[key]

    def payload(self, epoch: Epoch, channel: ChannelId, seq: int) -> Json:
        """What the message carries; None if nobody sent it."""
        position = self.sender(epoch, channel).get(seq)
        if position is None:
            return None
        if position < 0:
            return next(m.payload for m in epoch.contents[channel] if m.seq == seq)
        event = self.events[position]
        assert isinstance(event, Sent)
        return event.payload

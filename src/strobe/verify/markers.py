"""The two rules of Chandy and Lamport's paper (1985, section 3.3) as far as a journal shows them.

For each completed snapshot: exactly one marker was sent and one received on every channel; each went out after its
sender's recording and before the sender's next step; and, where channels keep order, it arrived behind every message
sent ahead of it and ahead of every later one. Other protocols put no markers, or let them overtake: they are judged by
their cuts alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from strobe.model.events import MarkerSent, Recorded
from strobe.model.graph import Channel
from strobe.model.ids import SnapshotId
from strobe.verify.explain import name_of
from strobe.verify.history import Epoch, History
from strobe.verify.violation import Place, Rule, Violation

__all__ = ["check_markers"]


def check_markers(history: History, epoch: Epoch | None, snapshot: SnapshotId) -> Iterator[Violation]:
    if epoch is None or history.header.protocol != "chandy-lamport":
        return
    for channel in history.graph.channels:
        sent = epoch.markers_sent.get(snapshot, {}).get(channel.id, [])
        received = epoch.markers_received.get(snapshot, {}).get(channel.id, [])
        if len(sent) != 1 or len(received) != 1:
            places = [Place(p, history.events[p]) for p in (*sent, *received)]
            yield Violation(
                Rule.MARKER_COUNT,
                f"Snapshot {snapshot}: {_times(len(sent))} sent and {_times(len(received))} received on "
                f"{name_of(channel)}, where there must be exactly one.",
                snapshot=snapshot,
                channel=channel.id,
                first=places[0] if places else None,
                second=places[1] if len(places) > 1 else None,
            )
            continue
        yield from _sending_rule(history, epoch, snapshot, channel, sent[0])
        if history.header.order == "fifo" and not _faulty(epoch, channel):
            yield from _overtaking(history, epoch, snapshot, channel, sent[0], received[0])


def _times(count: int) -> str:
    return "1 marker was" if count == 1 else f"{count} markers were"


def _faulty(epoch: Epoch, channel: Channel) -> bool:
    return channel.id in epoch.lost or channel.id in epoch.duplicated


def _sending_rule(
    history: History, epoch: Epoch, snapshot: SnapshotId, channel: Channel, position: int
) -> Iterator[Violation]:
    marker = history.events[position]
    records = epoch.records[snapshot].get(channel.source)
    if records is None:
        return  # reported as a missing record
    record = history.events[records[0]]
    assert isinstance(marker, MarkerSent)
    assert isinstance(record, Recorded)
    if position < records[0] or marker.step != record.step:
        when = "before it recorded" if position < records[0] else f"only after step {marker.step}"
        yield Violation(
            Rule.MARKER_ORDER,
            f"Snapshot {snapshot}: {channel.source} sent the marker on {name_of(channel)} {when}, but it recorded "
            f"after step {record.step}: the marker must follow the recording at once.",
            snapshot=snapshot,
            channel=channel.id,
            node=channel.source,
            first=Place(records[0], record),
            second=Place(position, marker),
        )


def _overtaking(
    history: History, epoch: Epoch, snapshot: SnapshotId, channel: Channel, sent_at: int, received_at: int
) -> Iterator[Violation]:
    # Positions of one node's events are in its own order, so counting lines before the marker counts its messages.
    ahead = len(epoch.contents.get(channel.id, ())) + bisect_left(epoch.sends[channel.id], sent_at)
    arrived = bisect_left(epoch.receives[channel.id], received_at)
    if ahead != arrived:
        yield Violation(
            Rule.MARKER_OVERTOOK,
            f"Snapshot {snapshot}: {channel.source} had sent {ahead} {'message' if ahead == 1 else 'messages'} on "
            f"{name_of(channel)} ahead of it, but {channel.target} had received {arrived} when the marker came: "
            + ("it overtook messages." if arrived < ahead else "messages overtook it."),
            snapshot=snapshot,
            channel=channel.id,
            first=Place(sent_at, history.events[sent_at]),
            second=Place(received_at, history.events[received_at]),
        )

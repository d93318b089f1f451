"""Law 1 where channels are logs and a channel's content is a range of positions.

A channel is one log with one producer and any number of consumers, and a position counts what has been appended: the
log holds everything in (0, end]. A snapshot has, per channel, the position of the producer's *barrier* (what it had
appended when it recorded) and, per consumer, how far it had read when it recorded and which range is in flight to it.
Then law 1 is arithmetic: a consumer has read nothing beyond the barrier, and what is in flight is exactly
(consumed, barrier]. A consumer that has read up to its barrier (aligned) has an empty range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from strobe.model.ids import ChannelId, NodeId, SnapshotId
from strobe.verify.violation import Rule, Violation

__all__ = ["ChannelCut", "ConsumerCut", "LogGraph", "LogSnapshot", "check_log_snapshot"]


@dataclass(frozen=True, slots=True)
class ConsumerCut:
    """`position`: read so far at its recording. The range (in_flight_from, in_flight_to] is on its way to it."""

    position: int
    in_flight_from: int
    in_flight_to: int


@dataclass(frozen=True)
class ChannelCut:
    channel: ChannelId
    producer: NodeId
    barrier: int
    consumers: Mapping[NodeId, ConsumerCut]


@dataclass(frozen=True)
class LogGraph:
    """The nodes of a system and its logs: who appends to each, who reads it. A log may have no reader."""

    nodes: tuple[NodeId, ...]
    producers: Mapping[ChannelId, NodeId]
    consumers: Mapping[ChannelId, tuple[NodeId, ...]]


@dataclass(frozen=True)
class LogSnapshot:
    snapshot: SnapshotId
    recorded: frozenset[NodeId]  # the nodes whose state it holds
    channels: Mapping[ChannelId, ChannelCut]


def check_log_snapshot(
    graph: LogGraph, snapshot: LogSnapshot, previous: LogSnapshot | None = None
) -> tuple[Violation, ...]:
    """Law 1 for one snapshot, and against the one before it on the same timeline, if there is one."""
    return tuple(_snapshot(graph, snapshot, previous))


def _snapshot(graph: LogGraph, snapshot: LogSnapshot, previous: LogSnapshot | None) -> Iterator[Violation]:
    number = snapshot.snapshot
    for node in graph.nodes:
        if node not in snapshot.recorded:
            yield Violation(
                Rule.MISSING_STATE,
                f"Snapshot {number} is called complete, but holds no state for {node}.",
                snapshot=number,
                node=node,
            )
    names = [(n, "node") for n in sorted(snapshot.recorded) if n not in graph.nodes]
    for name, what in (*names, *((c, "channel") for c in snapshot.channels if c not in graph.producers)):
        yield Violation(
            Rule.UNKNOWN_NAME,
            f"Snapshot {number} names the {what} {name!r}, which the graph does not have.",
            snapshot=number,
        )
    for channel, producer in graph.producers.items():
        cut = snapshot.channels.get(channel)
        if cut is None:
            yield Violation(
                Rule.MISSING_CHANNEL,
                f"Snapshot {number} is called complete, but holds no position for channel {channel} of {producer}.",
                snapshot=number,
                channel=channel,
            )
            continue
        if cut.producer != producer:
            yield Violation(
                Rule.WRONG_END,
                f"Snapshot {number}: {cut.producer} put the barrier into {channel}, but only {producer} appends to it.",
                snapshot=number,
                channel=channel,
                node=cut.producer,
            )
        yield from _consumers(number, cut, graph.consumers.get(channel, ()))
        before = None if previous is None else previous.channels.get(channel)
        if previous is not None and before is not None:
            yield from _forward(number, cut, previous.snapshot, before)


def _consumers(number: SnapshotId, cut: ChannelCut, expected: tuple[NodeId, ...]) -> Iterator[Violation]:
    channel, barrier = cut.channel, cut.barrier
    for node in expected:
        if node not in cut.consumers:
            yield Violation(
                Rule.MISSING_CHANNEL,
                f"Snapshot {number} does not say how far {node} had read {channel}.",
                snapshot=number,
                channel=channel,
                node=node,
            )
    for node, consumer in cut.consumers.items():
        held = f"({consumer.in_flight_from}, {consumer.in_flight_to}]"
        if node not in expected:
            yield Violation(
                Rule.WRONG_END,
                f"Snapshot {number}: {node} is recorded as a reader of {channel}, but the graph has no such edge.",
                snapshot=number,
                channel=channel,
                node=node,
            )
        elif consumer.position > barrier:
            yield Violation(
                Rule.EFFECT_WITHOUT_CAUSE,
                f"Snapshot {number}: {node} had read {channel} up to {consumer.position} when it recorded, but "
                f"{cut.producer} had appended only up to {barrier} when it did: the cut shows an effect without its "
                "cause.",
                snapshot=number,
                channel=channel,
                node=node,
            )
        elif (consumer.in_flight_from, consumer.in_flight_to) != (consumer.position, barrier):
            yield Violation(
                Rule.RANGE_MISMATCH,
                f"Snapshot {number}: {node} had read {channel} up to {consumer.position} and the barrier of "
                f"{cut.producer} is at {barrier}, so ({consumer.position}, {barrier}] is in flight, but the snapshot "
                f"holds {held}: {_harm(consumer, barrier)}.",
                snapshot=number,
                channel=channel,
                node=node,
            )


def _harm(consumer: ConsumerCut, barrier: int) -> str:
    harms = []
    if consumer.in_flight_from < consumer.position:
        harms.append("what it had read already would be read again")
    if consumer.in_flight_to > barrier:
        harms.append("what was appended after the barrier would be read as well")
    if consumer.in_flight_from > consumer.position or consumer.in_flight_to < barrier:
        harms.append("what lies outside of that range would never be read")
    return ", and ".join(harms)


def _forward(number: SnapshotId, cut: ChannelCut, earlier: SnapshotId, before: ChannelCut) -> Iterator[Violation]:
    """On one timeline producers only append and consumers only read on."""
    readers = {n: (c.position, before.consumers[n].position) for n, c in cut.consumers.items() if n in before.consumers}
    positions = [(cut.producer, "appended", cut.barrier, before.barrier)]
    positions += [(node, "read", now, then) for node, (now, then) in readers.items()]
    for node, did, now, then in positions:
        if now < then:
            yield Violation(
                Rule.POSITION_BACKWARDS,
                f"Snapshot {number}: {node} had {did} {cut.channel} up to {now}, but in snapshot {earlier}, before it "
                f"on the same timeline, up to {then} already.",
                snapshot=number,
                channel=cut.channel,
                node=node,
            )

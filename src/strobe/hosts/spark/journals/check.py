"""Law 1 over a journal of any size: every snapshot of it, and what the channels lost or delivered twice.

Theory
------
Put the snapshots of a run in the order in which every node has recorded them. Each event then falls before the first
snapshot whose state has it: its *rank*. A message that was sent at rank s and received at rank r is in flight in the
snapshots from s to r - 1; if r is smaller than s, those from r to s - 1 show an effect without its cause. So one join
of sends and receives answers for all snapshots at once. Most messages are sent and received between the same two
snapshots and say nothing; what remains is compared with what the snapshots hold.

Snapshots that overlap may be recorded in different orders by different nodes. They are split into sequences in which
all nodes agree, and each sequence is checked by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from strobe.hosts.spark.journals.possibly import nodes_of
from strobe.model.cut import Json
from strobe.model.errors import Misuse
from strobe.verify.violation import MEANING, Rule

__all__ = ["Broken", "CheckedSnapshot", "JournalReport", "check"]

_NAMED: Final = 3  # messages of each kind of violation that are named


@dataclass(frozen=True)
class Broken:
    """A rule that is broken: how often, and by which messages, the first of them."""

    rule: Rule
    snapshot: int | None
    count: int
    messages: tuple[tuple[str, int], ...]  # channel and number

    @property
    def sentence(self) -> str:
        where = "" if self.snapshot is None else f"Snapshot {self.snapshot}: "
        named = ", ".join(f"{seq} of {channel}" for channel, seq in self.messages)
        more = ", …" if self.count > len(self.messages) else ""
        return f"{where}{self.count:,} × {self.rule.value} ({MEANING[self.rule]}): {named}{more}"


@dataclass(frozen=True)
class CheckedSnapshot:
    snapshot: int
    in_flight: int
    violations: int


@dataclass(frozen=True)
class JournalReport:
    events: int
    sent: int
    received: int
    never_received: int  # in flight when the journal ends, or lost
    overtaken: int  # of these, how many a later message of their channel has overtaken: lost, if it keeps order
    snapshots: tuple[CheckedSnapshot, ...]
    broken: tuple[Broken, ...] = field(default=())

    @property
    def ok(self) -> bool:
        return not self.broken

    @property
    def sentence(self) -> str:
        count = f"{len(self.snapshots)} snapshot{'' if len(self.snapshots) == 1 else 's'}"
        if self.ok:
            return f"{count} checked over {self.events:,} events: every one is a consistent cut."
        return f"{count} checked over {self.events:,} events: {sum(b.count for b in self.broken):,} violations."

    def to_json(self) -> dict[str, Json]:
        return {
            "ok": self.ok,
            "sentence": self.sentence,
            "events": self.events,
            "sent": self.sent,
            "received": self.received,
            "never_received": self.never_received,
            "overtaken": self.overtaken,
            "snapshots": [
                {"snapshot": s.snapshot, "in_flight": s.in_flight, "violations": s.violations} for s in self.snapshots
            ],
            "violations": [
                {
                    "rule": b.rule.value, "sentence": b.sentence, "snapshot": b.snapshot, "count": b.count,
                    "messages": [list(message) for message in b.messages],
                }
                for b in self.broken
            ],
        }  # fmt: skip


def check(events: DataFrame, tell: Callable[[str], None] = lambda words: None) -> JournalReport:
    tell("the nodes and their snapshots")
    names = [str(node.name) for node in nodes_of(events)]
    counts = {row["kind"]: row["count"] for row in events.groupBy("kind").count().collect()}
    positions = _positions(events, names)
    chains = _chains(positions) or [()]
    broken: list[Broken] = []
    in_flight: dict[int, int] = {}
    never = overtaken = 0
    for number, chain in enumerate(chains):
        tell(f"sends and receives, joined{f' ({number + 1} of {len(chains)})' if len(chains) > 1 else ''}")
        left = _met(events, names, positions, chain).persist()
        try:
            if number == 0:
                broken += _channels(left)
                never, overtaken = _unreceived(events, left)
            broken += _effects(left, chain)
            flying = _in_flight(left, len(chain))
            in_flight.update(_counted(flying, chain))
            broken += _contents(events, flying, chain, positions)
        finally:
            left.unpersist()
    return JournalReport(
        events=sum(counts.values()),
        sent=counts.get("sent", 0),
        received=counts.get("received", 0),
        never_received=never,
        overtaken=overtaken,
        snapshots=tuple(
            CheckedSnapshot(s, in_flight.get(s, 0), sum(b.count for b in broken if b.snapshot == s))
            for s in sorted(positions)
        ),
        broken=tuple(broken),
    )


def _positions(events: DataFrame, names: Sequence[str]) -> dict[int, dict[str, int]]:
    """By snapshot, where each node recorded; Misuse if one did not, or twice."""
    found: dict[int, dict[str, int]] = {}
    for row in events.filter("kind = 'recorded'").select("snapshot", "node", "step").collect():
        recorded = found.setdefault(row["snapshot"], {})
        if row["node"] in recorded:
            raise Misuse(f"{row['node']} recorded twice for snapshot {row['snapshot']}.", untouched="Nothing was said.")
        recorded[row["node"]] = row["step"]
    for snapshot, recorded in found.items():
        missing = [name for name in names if name not in recorded]
        if missing or len(recorded) > len(names):
            raise Misuse(
                f"Snapshot {snapshot} is not whole: {', '.join(missing) or 'unknown nodes'} "
                f"{'did not record' if missing else 'recorded'}.",
                untouched="Nothing was checked.",
                next="A snapshot has a row 'recorded' for each node of the run.",
            )
    return found


def _chains(positions: Mapping[int, Mapping[str, int]]) -> list[tuple[int, ...]]:
    """Sequences of snapshots in which no node goes backwards."""
    chains: list[list[int]] = []
    order = sorted(positions, key=lambda s: (sum(positions[s].values()), s))
    for snapshot in order:
        at = positions[snapshot]
        for chain in chains:
            if all(step <= at[node] for node, step in positions[chain[-1]].items()):
                chain.append(snapshot)
                break
        else:
            chains.append([snapshot])
    return [tuple(chain) for chain in chains]


def _met(
    events: DataFrame, names: Sequence[str], positions: Mapping[int, Mapping[str, int]], chain: Sequence[int]
) -> DataFrame:
    """Messages that are not simply sent and received, once, between the same two snapshots: channel, seq, the ranks
    (null if it was never sent or received), and how often it was received."""
    steps = {name: [positions[snapshot][name] for snapshot in chain] for name in names}
    ranked = [
        events.filter(F.col("kind") == kind)
        .select("channel", "seq", "node", "step")
        .mapInArrow(partial(_rank, steps), "channel STRING, seq BIGINT, rank INT")
        for kind in ("sent", "received")
    ]
    sent = ranked[0].withColumnRenamed("rank", "sent")
    received = ranked[1].groupBy("channel", "seq").agg(F.min("rank").alias("received"), F.count("*").alias("times"))
    met = sent.join(received, ["channel", "seq"], "full_outer")
    return met.filter("sent is null or received is null or sent <> received or times > 1")


def _rank(steps: Mapping[str, Sequence[int]], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """How many of the snapshots were recorded before each event."""
    recorded = {node: np.array(at, np.int64) for node, at in steps.items()}
    for batch in batches:
        nodes = batch.column("node").dictionary_encode()
        step = batch.column("step").to_numpy(zero_copy_only=False)
        which = nodes.indices.to_numpy(zero_copy_only=False)
        rank = np.zeros(len(step), np.int32)
        for index, name in enumerate(nodes.dictionary.to_pylist()):
            mine = which == index
            rank[mine] = np.searchsorted(recorded[name], step[mine], "left")
        yield pa.RecordBatch.from_arrays(
            [batch.column("channel"), batch.column("seq"), pa.array(rank)], ["channel", "seq", "rank"]
        )


def _channels(left: DataFrame) -> list[Broken]:
    unsent = left.filter("sent is null")
    twice = left.filter("times > 1")
    return [
        *_broken(Rule.RECEIVE_WITHOUT_SEND, None, unsent),
        *_broken(Rule.DUPLICATE_DELIVERY, None, twice),
    ]


def _unreceived(events: DataFrame, left: DataFrame) -> tuple[int, int]:
    """Messages never received, and those of them that a later one of their channel has overtaken."""
    latest = events.filter("kind = 'received'").groupBy("channel").agg(F.max("seq").alias("latest"))
    never = left.filter("received is null").join(F.broadcast(latest), "channel", "left")
    row = never.agg(F.count("*").alias("all"), F.count_if(F.col("seq") < F.col("latest")).alias("overtaken")).first()
    assert row is not None
    return row["all"], row["overtaken"]


def _effects(left: DataFrame, chain: Sequence[int]) -> list[Broken]:
    wrong = left.filter("received < sent").select(
        "channel", "seq", F.explode(F.sequence("received", F.col("sent") - 1)).alias("rank")
    )
    return _by_snapshot(Rule.EFFECT_WITHOUT_CAUSE, wrong, chain)


def _in_flight(left: DataFrame, count: int) -> DataFrame:
    """A row for each snapshot (by rank) and message that is in flight in it."""
    until = F.coalesce("received", F.lit(count))
    return left.filter(F.col("sent") < until).select(
        "channel", "seq", F.explode(F.sequence("sent", until - 1)).alias("rank")
    )


def _counted(flying: DataFrame, chain: Sequence[int]) -> dict[int, int]:
    return {chain[row["rank"]]: row["count"] for row in flying.groupBy("rank").count().collect()}


def _contents(
    events: DataFrame, flying: DataFrame, chain: Sequence[int], positions: Mapping[int, Mapping[str, int]]
) -> list[Broken]:
    """What the snapshots hold against what was in flight."""
    if not chain:
        return []
    ranks = events.sparkSession.createDataFrame([(s, i) for i, s in enumerate(chain)], "snapshot BIGINT, rank INT")
    held = events.filter("kind = 'held'").select("snapshot", "channel", "seq").join(F.broadcast(ranks), "snapshot")
    held = held.select("channel", "seq", "rank").persist()
    try:
        missing = flying.join(held, ["channel", "seq", "rank"], "left_anti")
        extra = held.join(flying, ["channel", "seq", "rank"], "left_anti").persist()
        found = _by_snapshot(Rule.MISSING_MESSAGE, missing, chain)
        if extra.isEmpty():
            return found
        # Rare, so it may cost another look at the events: why should the message not be there?
        known = extra.join(_sends(events), ["channel", "seq"], "left")
        at = [(s, node, step) for s in chain for node, step in positions[s].items()]
        recorded = events.sparkSession.createDataFrame(at, "snapshot BIGINT, node STRING, recorded BIGINT")
        judged = known.join(ranks, "rank").join(recorded, ["snapshot", "node"], "left")
        found += _by_snapshot(Rule.INVENTED_MESSAGE, judged.filter("sent is null"), chain)
        found += _by_snapshot(Rule.LATE_MESSAGE, judged.filter("sent > recorded"), chain)
        found += _by_snapshot(Rule.EXTRA_MESSAGE, judged.filter("sent <= recorded"), chain)
        return found
    finally:
        held.unpersist()


def _sends(events: DataFrame) -> DataFrame:
    return events.filter("kind = 'sent'").select("channel", "seq", "node", F.col("step").alias("sent"))


def _by_snapshot(rule: Rule, wrong: DataFrame, chain: Sequence[int]) -> list[Broken]:
    """One `Broken` for each snapshot, from rows with a rank, in the order of the snapshots."""
    first = F.slice(F.sort_array(F.collect_list(F.struct("channel", "seq"))), 1, _NAMED)
    rows = wrong.groupBy("rank").count().orderBy("rank").collect()
    if not rows:
        return []
    # Only the first few of each are collected, however many there are.
    order = Window.partitionBy("rank").orderBy("channel", "seq")
    named = wrong.withColumn("n", F.row_number().over(order)).filter(F.col("n") <= _NAMED)
    few = {row["rank"]: row["first"] for row in named.groupBy("rank").agg(first.alias("first")).collect()}
    return [Broken(rule, chain[row["rank"]], row["count"], _messages(few[row["rank"]])) for row in rows]


def _broken(rule: Rule, snapshot: int | None, wrong: DataFrame) -> Iterator[Broken]:
    count = wrong.count()
    if count:
        first = wrong.select("channel", "seq").orderBy("channel", "seq").limit(_NAMED).collect()
        yield Broken(rule, snapshot, count, _messages(first))


def _messages(rows: Sequence[Any]) -> tuple[tuple[str, int], ...]:
    return tuple((row["channel"], row["seq"]) for row in rows)

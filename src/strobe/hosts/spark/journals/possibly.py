"""`possibly` of a conjunction over a journal of any size.

Theory
------
The walk of Garg and Waldecker (see `strobe.predicates.conjunctive`) needs three things of a run: which message each
step has received and which step sent it, in which states each condition holds, and both in the order of a node's steps.
That is where the events are: a join, an evaluation and a sort, which are Spark's work. What is left is two numbers for
each message. The walk reads them once, forwards, and holds a batch for each node, so its time is linear in the messages
and its memory does not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from strobe.hosts.spark.journals.columns import truth
from strobe.hosts.spark.journals.forward import Intervals, Messages, Numbers
from strobe.hosts.spark.journals.tables import STEPS
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId
from strobe.predicates.condition import Condition, Term, Unevaluable, read_condition

__all__ = ["Answer", "Node", "nodes_of", "possibly"]

_STATES: Final = ("initial", *STEPS)


@dataclass(frozen=True)
class Node:
    name: NodeId
    first: int  # the number of its first state
    last: int


@dataclass(frozen=True)
class Answer:
    witness: dict[NodeId, int] | None  # the step after which each node stands; None if it holds in no consistent cut
    events: int
    messages: int  # that the walk has read
    evaluated: str  # where the conditions were evaluated: "Spark" or "Python"

    @property
    def holds(self) -> bool:
        return self.witness is not None


def nodes_of(events: DataFrame) -> tuple[Node, ...]:
    """The nodes of the run and how far each came; Misuse if its steps are not counted one by one."""
    steps = events.filter(F.col("kind").isin(*_STATES))
    first = F.min(F.when(F.col("kind") == "initial", F.col("step")))
    begun = F.col("kind") != "initial"
    rows = steps.groupBy("node").agg(
        first.alias("initial"), F.min("step").alias("least"), F.max("step").alias("last"),
        F.count(F.when(begun, 1)).alias("steps"), F.count_if(~begun).alias("initials"),
    ).orderBy("node").collect()  # fmt: skip
    found = []
    for row in rows:
        initial = row["least"] - 1 if row["initial"] is None else row["initial"]
        if row["node"] is None or row["last"] - initial != row["steps"] or row["initials"] > 1:
            raise Misuse(
                f"The steps of {row['node']} are not counted one by one: {row['steps']} from {initial + 1} to "
                f"{row['last']}.",
                untouched="Nothing was decided.",
                next="A step has one row, 'internal' or 'received', and the number after that of the step before.",
            )
        found.append(Node(NodeId(row["node"]), initial, row["last"]))
    if not found:
        raise Misuse("The journal has no steps.", next="Take one of a run in which something has happened.")
    return tuple(found)


def possibly(events: DataFrame, text: str, scratch: Path, tell: Callable[[str], None] = lambda words: None) -> Answer:
    """Whether all conditions of the conjunction `text` hold together in some consistent cut. `scratch` is an empty
    directory that this process and Spark's executors see."""
    tell("the nodes and their steps")
    nodes = nodes_of(events)
    condition = read_condition(text, [node.name for node in nodes])
    parts = _conjuncts(condition)
    tell("the conditions, in every state")
    in_spark = _write_intervals(events, nodes, parts, scratch / "intervals")
    tell("every message, from where to where")
    _write_messages(events, nodes, scratch / "messages")
    tell("the walk through the run")
    truths = {part.node for part in parts}
    messages = [Messages(_files(scratch / "messages", "receiver", i)) for i in range(len(nodes))]
    holds = [
        Intervals(_files(scratch / "intervals", "index", i)) if node.name in truths else None
        for i, node in enumerate(nodes)
    ]
    found = _walk(nodes, messages, holds)
    return Answer(
        None if found is None else {node.name: step for node, step in zip(nodes, found, strict=True)},
        events.count(),
        sum(one.read for one in messages),
        "Spark" if in_spark else "Python",
    )


def _conjuncts(condition: Condition) -> tuple[Term, ...]:
    if condition.conjuncts is None:
        raise Misuse(
            f"{condition.text!r} is not a conjunction of conditions that each speak of one node, and only these are "
            "decided over Parquet.",
            untouched="Nothing was looked at.",
            next="Write it like a.balance < 0 and b.balance < 0, or ask a journal that fits into memory.",
        )
    return condition.conjuncts


def _walk(nodes: Sequence[Node], messages: Sequence[Messages], holds: Sequence[Intervals | None]) -> list[int] | None:
    """The smallest consistent cut in which every condition holds."""

    def at_or_after(index: int, state: int) -> int | None:
        offered = holds[index]
        found = state if offered is None else offered.at_or_after(state)
        return None if found is None or found > nodes[index].last else found

    goal: list[int] = []
    for index, node in enumerate(nodes):
        start = at_or_after(index, node.first)
        if start is None:
            return None
        goal.append(start)
    needs: Numbers = np.array([node.first for node in nodes], np.int64)
    behind = set(range(len(nodes)))
    while behind:
        for index in behind:
            messages[index].upto(goal[index], needs)
        behind = set()
        for index in np.flatnonzero(needs > np.array(goal, np.int64)).tolist():
            further = at_or_after(index, int(needs[index]))
            if further is None:
                return None
            goal[index] = further
            behind.add(index)
    return goal


def _files(directory: Path, column: str, index: int) -> list[Path]:
    """The one file with this node's rows, which one task has written in order."""
    return sorted((directory / f"{column}={index}").glob("*.parquet"))


# ── what Spark prepares ─────────────────────────────────────────────────────────────────────────────────────────────


def _numbered(rows: DataFrame, nodes: Sequence[Node], column: str) -> DataFrame:
    """The rows with a node's number in `column`, instead of its name."""
    pairs = [(node.name, index) for index, node in enumerate(nodes)]
    numbers = rows.sparkSession.createDataFrame(pairs, f"node STRING, {column} INT")
    return rows.join(F.broadcast(numbers), "node").drop("node")


def _write_messages(events: DataFrame, nodes: Sequence[Node], directory: Path) -> None:
    sent = events.filter("kind = 'sent'").select("channel", "seq", "node", F.col("step").alias("sent"))
    received = events.filter("kind = 'received'").select("channel", "seq", "node", "step")
    met = _numbered(received, nodes, "receiver").join(_numbered(sent, nodes, "sender"), ["channel", "seq"])
    _write(met.filter("sender <> receiver").select("receiver", "step", "sender", "sent"), "receiver", "step", directory)


def _write_intervals(events: DataFrame, nodes: Sequence[Node], parts: Sequence[Term], directory: Path) -> bool:
    """Returns whether Spark evaluated the conditions; else Python did."""
    if "state" not in events.columns:
        raise Misuse(
            "The journal has no column 'state', so there is nothing to ask of a node.",
            untouched="Nothing was decided.",
            next="docs/reference/predicates.md has the columns.",
        )
    asked = [part.node for part in parts]
    states = events.filter(F.col("kind").isin(*_STATES) & F.col("node").isin(*asked))
    columns = [truth(part.text, events.schema["state"].dataType) for part in parts]
    known = [column for column in columns if column is not None]
    if len(known) == len(parts):
        chosen = F.coalesce(
            *(F.when(F.col("node") == part.node, column) for part, column in zip(parts, known, strict=True))
        )
        judged = states.select("node", "step", chosen.alias("holds"), F.lit(None).cast("string").alias("why"))
    else:
        judged = states.select("node", "step", "state").mapInArrow(
            partial(_in_python, {part.node: part for part in parts}),
            T.StructType([
                T.StructField("node", T.StringType()), T.StructField("step", T.LongType()),
                T.StructField("holds", T.BooleanType()), T.StructField("why", T.StringType()),
            ]),
        )  # fmt: skip
    steps = Window.partitionBy("index").orderBy("step")
    before, after = F.lag("holds").over(steps), F.lead("holds").over(steps)
    edges = (
        _numbered(judged, nodes, "index")
        .withColumn("starts", F.col("holds") & ~F.coalesce(before, F.lit(False)))
        .withColumn("ends", F.col("holds") & ~F.coalesce(after, F.lit(False)))
        .filter("starts or ends or holds is null")
        .withColumn("last", F.when(F.col("ends"), F.col("step")).otherwise(F.lead("step").over(steps)))
        .filter("starts or holds is null")
        .select("index", F.col("step").alias("first"), "last", "holds", "why")
    )
    _write(edges, "index", "first", directory)
    _refuse_unknown(edges, nodes, parts, directory)
    return len(known) == len(parts)


def _in_python(parts: dict[NodeId, Term], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        holds: list[bool | None] = []
        why: list[str | None] = []
        for node, state in zip(batch.column("node").to_pylist(), batch.column("state").to_pylist(), strict=True):
            try:
                holds.append(bool(parts[node].of(state)))
                why.append(None)
            except Unevaluable as error:
                holds.append(None)
                why.append(str(error))
        yield pa.RecordBatch.from_arrays(
            [batch.column("node"), batch.column("step"), pa.array(holds, pa.bool_()), pa.array(why, pa.string())],
            ["node", "step", "holds", "why"],
        )


def _refuse_unknown(edges: DataFrame, nodes: Sequence[Node], parts: Sequence[Term], directory: Path) -> None:
    """A condition that cannot be evaluated in some state is a question that makes no sense."""
    written = edges.sparkSession.read.parquet(str(directory)) if any(directory.glob("index=*")) else None
    strange = [] if written is None else written.filter("holds is null").orderBy("first").limit(1).collect()
    if strange:
        row = strange[0]
        node = nodes[row["index"]].name
        text = next(part.text for part in parts if part.node == node)
        raise Misuse(
            f"The condition cannot be evaluated for {node} after step {row['first']}: "
            f"{row['why'] or text + ': a field is null'}.",
            untouched="Nothing was decided.",
            next="Compare values of one kind, and leave out states in which a field is missing.",
        )


def _write(rows: DataFrame, node: str, order: str, directory: Path) -> None:
    """One sorted file for each node."""
    rows.repartition(node).sortWithinPartitions(node, order).write.partitionBy(node).parquet(str(directory))

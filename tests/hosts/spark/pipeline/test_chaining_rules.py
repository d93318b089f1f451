"""Which stages may be chained, by what is declared. No Spark."""

from __future__ import annotations

from typing import Any

import pytest

import strobe
from strobe.hosts.spark.pipeline.chaining import chained_into, keeps_channel, merged, noted_chains
from strobe.hosts.spark.pipeline.pipeline import Pipeline
from strobe.look.judging import channels_asked_for
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId

A, B = NodeId("a"), NodeId("b")


def pipeline(first: dict[str, Any] | None = None, second: dict[str, Any] | None = None, **options: Any) -> Pipeline:
    """a → b, with a sink behind it."""
    made = Pipeline("p", **options)
    made.stage("a", **(first or {}))(lambda spark: spark)
    reads = (second or {}).pop("reads", "a")
    made.stage("b", reads=reads, to=strobe.ConsoleSink(), **(second or {}))(lambda **frames: frames["a"])
    return made


def why(made: Pipeline, asked_for: set[str] | None = frozenset()) -> str | None:  # type: ignore[assignment]
    return keeps_channel(made, A, made.stages, asked_for)


def test_a_stage_with_one_reader_is_chained_unless_it_is_said_that_it_is_not() -> None:
    assert Pipeline("p").chain
    assert why(pipeline()) is None
    assert why(pipeline({"chain": True}, chain=False)) is None
    assert why(pipeline(chain=False)) == "chain=False is said of its pipeline"
    assert why(pipeline({"chain": False})) == "chain=False is said of it"


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"to": strobe.ConsoleSink()}, {}, "it has a sink"),
        ({"conf": {"spark.sql.ansi.enabled": "false"}}, {}, "its conf is another one than that of 'b'"),
        ({}, {"trigger": {"processingTime": "1 minute"}}, "its trigger is another one than that of 'b'"),
        ({"partitions": 3}, {"partitions": 2}, "it has other partitions than 'b'"),
        ({}, {"max_rows_per_batch": 10}, "the batches of 'b' are limited by commits of its channel"),
        ({}, {"start": "earliest"}, "it is said where 'b' begins on it"),
        ({"replaces": "z"}, {}, "it replaces 'z'"),
        ({}, {"reads": ["a", strobe.feedback("b", schema="x INT")]}, "it is beside a feedback"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_can_be_seen_of_a_channel_keeps_it(first: dict[str, Any], second: dict[str, Any], words: str) -> None:
    assert why(pipeline(first, dict(second))) == words


def test_a_second_reader_keeps_the_channel() -> None:
    made = pipeline()
    made.stage("c", reads="a", to=strobe.ConsoleSink())(lambda a: a)
    assert why(made) == "it has 2 readers"


def test_an_invariant_that_looks_at_a_channel_keeps_it() -> None:
    made = pipeline()
    made.invariant("no money is made", sql="select * from IN_FLIGHT.A union all select * from state.b")
    assert channels_asked_for(made.invariants) == {"a"}
    assert why(made, channels_asked_for(made.invariants)) == "an invariant looks at its channel"
    made.invariant("counted", sql="select * from meta.channels")
    assert channels_asked_for(made.invariants) is None
    assert why(made, None) == "an invariant is a function, which may look at any channel"


def test_an_only_reader_takes_over_how_its_producer_is_triggered() -> None:
    made = pipeline({"trigger": {"availableNow": True}, "max_rows_per_batch": 5, "start": "latest"})
    both = merged(made.stages[A], made.stages[B], alone=True)
    assert (both.uid, both.inputs, both.ends, both.max_rows_per_batch, both.start) == ("b", (), True, 5, "latest")
    assert both.chained == {"a": "b"}
    runs = made.with_stages({B: both})
    assert chained_into(runs) == {"a": "b"}
    assert noted_chains(runs) == {"b": {"chained": {"a": "b"}}}
    assert noted_chains(pipeline(chain=False)) == {}


def test_chain_is_true_or_false() -> None:
    with pytest.raises(Misuse, match="chain='yes' is not legal"):
        Pipeline("p", chain="yes")  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="Stage 'a' of pipeline 'p': chain=1 is not legal"):
        pipeline({"chain": 1})

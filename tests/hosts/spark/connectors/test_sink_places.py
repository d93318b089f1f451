"""A sink that writes elsewhere after a resume is mentioned; one that moved along with the job is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

import strobe
from strobe.hosts.spark.connectors.base import SinkContext
from strobe.hosts.spark.home.moved import Homes
from strobe.hosts.spark.job.job import Job
from strobe.hosts.spark.restore.sink_places import changed_keys, changed_sinks, sink_keys, sink_places
from strobe.model.errors import Misuse
from strobe.model.ids import Incarnation, NodeId, Timeline

HERE = Homes(Path("/a/.strobe"), Path("/a/.strobe"))


def places(*sinks: strobe.Sink, base: str = "/a") -> dict[str, object]:
    pipeline = strobe.Pipeline("p")

    @pipeline.stage(uid="s", to=sinks)
    def stage(spark: SparkSession) -> DataFrame: ...  # type: ignore[empty-body]

    return sink_places(pipeline.stages[NodeId("s")], Path(base))


def test_the_same_sinks_are_not_mentioned() -> None:
    was = places(strobe.DeltaSink("out/x"), strobe.MemorySink())
    assert list(changed_sinks(was, places(strobe.DeltaSink("./out/x"), strobe.MemorySink()), HERE)) == []
    assert list(changed_sinks(None, was, HERE)) == [], "it was not noted"


def test_another_path_another_directory_to_stand_in_and_sinks_that_come_and_go_are_mentioned() -> None:
    was = places(strobe.DeltaSink("out/x"), strobe.FileSink("out/y").named("files"))
    (other,) = changed_sinks(was, places(strobe.DeltaSink("out/z"), strobe.FileSink("out/y").named("files")), HERE)
    assert other.startswith("it wrote to /a/out/x, and writes to /a/out/z from now on")
    elsewhere = list(changed_sinks(was, places(*_two(), base="/b"), HERE))
    assert [s.split(",")[0] for s in elsewhere] == ["it wrote to /a/out/x", "it wrote to /a/out/y"]
    assert [*changed_sinks(was, places(strobe.DeltaSink("out/x")), HERE)] == [
        "it no longer writes to /a/out/y; what is there stays"
    ]
    assert "it writes to /a/out/y as well" in next(changed_sinks(places(strobe.DeltaSink("out/x")), was, HERE))


@pytest.mark.parametrize("sink", [strobe.DeltaSink("out"), strobe.DeltaSink("out", key="id"), strobe.FileSink("out")])
def test_a_file_where_the_directory_of_a_sink_should_be_is_said(tmp_path: Path, sink: strobe.Sink) -> None:
    (tmp_path / "out").write_text("not a table")
    schema = StructType([StructField("id", LongType())])
    context = SinkContext(
        "j", NodeId("s"), "s/0", Timeline(1), Incarnation(1), schema, "append", tmp_path, tmp_path / "home"
    )
    asks: list[Callable[[SinkContext], object]] = [sink.open, lambda c: sink.outlook(None, c, fork=False, again=False)]
    for ask in [*asks, *([sink.check_columns] if isinstance(sink, strobe.DeltaSink) else [])]:
        with pytest.raises(Misuse, match="out is not a directory"):
            ask(context)
    assert (tmp_path / "out").read_text() == "not a table"


def test_what_moved_along_with_the_home_is_not_mentioned() -> None:
    homes = Homes(Path("/a/.strobe"), Path("/b/.strobe"))
    assert list(changed_sinks(places(*_two()), places(*_two(), base="/b"), homes)) == []


def keys(*sinks: strobe.Sink) -> dict[str, object]:
    pipeline = strobe.Pipeline("p")
    pipeline.stage(uid="s", to=sinks)(lambda spark: spark)
    return sink_keys(pipeline.stages[NodeId("s")])


def test_another_key_is_mentioned_with_what_becomes_of_the_rows_that_are_there() -> None:
    append, by_a, by_b = (strobe.DeltaSink("out", key=key) for key in ((), ("a",), ("a", "b")))
    named = strobe.DeltaSink("t", key=["a", "b"]).named("t")
    assert keys(append, strobe.FileSink("f"), named) == {"0": [], "t": ["a", "b"]}
    for sink in (append, by_a):
        assert list(changed_keys(keys(sink), keys(sink))) == []
    (added,) = changed_keys(keys(append), keys(by_b))
    assert added.startswith("the key of sink 0 is a, b from now on, and its rows were added without a key so far")
    (other,) = changed_keys(keys(by_a), keys(by_b))
    assert "written by a so far" in other
    (gone,) = changed_keys(keys(by_a), keys(append))
    assert gone.endswith("and none replaces another: its key was a")
    assert list(changed_keys(None, keys(by_a))) == [], "it was not noted"


def _two() -> tuple[strobe.Sink, strobe.Sink]:
    return strobe.DeltaSink("out/x"), strobe.FileSink("out/y").named("files")


def test_a_job_and_a_pipeline_print_usefully(tmp_path: Path) -> None:
    pipeline = strobe.Pipeline("ledger")
    assert repr(pipeline) == "<Pipeline 'ledger': no stage yet>"

    @pipeline.stage(uid="postings", to=strobe.MemorySink())
    def postings(spark: SparkSession) -> DataFrame: ...  # type: ignore[empty-body]

    @pipeline.stage(uid="balances", reads="posting", to=strobe.MemorySink())
    def balances(posting: DataFrame) -> DataFrame: ...  # type: ignore[empty-body]

    assert repr(pipeline) == "<Pipeline 'ledger': postings, balances>"
    job = Job(pipeline, tmp_path / "home", "local[1]", tmp_path)
    assert repr(job) == f"<Job 'ledger': starting, 2 stages, home {tmp_path / 'home'}>"
    with pytest.raises(Misuse) as refused:
        pipeline.check()
    assert refused.value.next == "Did you mean 'postings'? The stages are: postings, balances."

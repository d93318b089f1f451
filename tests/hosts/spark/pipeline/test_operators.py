"""What Spark can do in a query, a stage can do: the tables are those of the same query run as plain Spark.

Two jobs are run for the whole module, one for stages with one input, where each batch is one commit of the producer as
it is one file in plain Spark, and one for a join and for types.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import strobe
from strobe.hosts.spark.job.job import start_job
from strobe.model.ids import ChannelId, NodeId
from strobe.store.manifest import NOTHING
from tests.support.spark.jobs import channel_rows, check_checkpoints, finish
from tests.support.spark.ledger_data import delta_rows

pytestmark = pytest.mark.spark

DDL = "id BIGINT, key INT, amount BIGINT, ts TIMESTAMP"
FILES, ROWS = 5, 40
START = datetime(2031, 5, 17, 9, 30, tzinfo=UTC)


def write_events(directory: Path, seed: int = 3) -> Path:
    """Files whose event time moves on by a minute each. Some rows come twice, and some come far too late."""
    rng = random.Random(seed)
    directory.mkdir(parents=True)
    written: list[tuple[int, int, int, datetime]] = []
    for index in range(FILES):
        rows = []
        for n in range(ROWS):
            minute = index - 4 if n % 10 == 9 else index
            at = START + timedelta(minutes=minute, seconds=rng.randrange(60))
            rows.append((index * ROWS + n, rng.randrange(4), rng.randrange(1, 100), at))
        rows += rng.sample(written, 5) if written else []
        written += rows
        columns = dict(zip(("id", "key", "amount", "ts"), zip(*rows, strict=True), strict=True))
        types = {"id": pa.int64(), "key": pa.int32(), "amount": pa.int64(), "ts": pa.timestamp("us", tz="UTC")}
        table = pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})
        pq.write_table(table, directory / f"{index:05d}.parquet")
        os.utime(directory / f"{index:05d}.parquet", (index, index))  # Spark reads them in this order
    return directory


def read_events(spark: SparkSession, directory: Path) -> DataFrame:
    return spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(directory))


# ── the queries ─────────────────────────────────────────────────────────────────────────────────────────────────────


def windows(events: DataFrame) -> DataFrame:
    per_minute = events.withWatermark("ts", "30 seconds").groupBy(F.window("ts", "1 minute"), "key")
    counted = per_minute.agg(F.count("*").alias("n"), F.sum("amount").alias("total"))
    return counted.select(F.col("window.start").alias("start"), "key", "n", "total")


def distinct_lately(events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "2 minutes").dropDuplicatesWithinWatermark(["id"])


def distinct(events: DataFrame) -> DataFrame:
    return events.dropDuplicates(["id"]).select("id", "amount")


class Total(StatefulProcessor):
    """Per key, how many rows there were and their sum, in state of two kinds."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "n BIGINT, amount BIGINT")
        self.largest = handle.getListState("largest", "amount BIGINT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        n, amount = self.total.get() or (0, 0)
        largest = [row[0] for row in self.largest.get()]
        for frame in rows:
            n, amount = n + len(frame), amount + int(frame["amount"].sum())
            largest = sorted({*largest, *map(int, frame["amount"])})[-3:]
        self.total.update((n, amount))
        self.largest.put([(value,) for value in largest])
        yield pd.DataFrame({"key": [key[0]], "n": [n], "amount": [amount], "largest": [str(largest)]})

    def close(self) -> None:
        pass


def totals(events: DataFrame) -> DataFrame:
    return events.groupBy("key").transformWithStateInPandas(
        Total(), "key INT, n BIGINT, amount BIGINT, largest STRING", "Update", "None"
    )


QUERIES: dict[str, tuple[Callable[[DataFrame], DataFrame], str, str | None]] = {
    "windows": (windows, "append", None),
    "distinct_lately": (distinct_lately, "append", None),
    "distinct": (distinct, "append", None),
    "totals": (totals, "update", "key"),
}


def plain(spark: SparkSession, data: Path, name: str, scratch: Path) -> list[Row]:
    """The rows that the query gives as plain Spark, in the order in which they came; of rows with a key the last."""
    query, mode, key = QUERIES[name]
    seen: list[Row] = []
    running = (
        query(read_events(spark, data))
        .writeStream.outputMode(mode)
        .option("checkpointLocation", str(scratch))
        .foreachBatch(lambda batch, batch_id: seen.extend(batch.collect()))
        .start()
    )
    try:
        running.processAllAvailable()
    finally:
        running.stop()
    return list({row[key]: row for row in seen}.values()) if key else seen


def table(spark: SparkSession, path: Path) -> list[Row]:
    return spark.read.parquet(*DeltaTable(str(path)).file_uris()).collect()


# ── stages with one input ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_events(tmp_path_factory.mktemp("events") / "in")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operators")


def pipeline_in(mode: str) -> strobe.Pipeline:
    config = strobe.CheckpointConfig(interval=0.5, retained=1000, tolerable_failures=1000, mode=mode)
    return strobe.Pipeline("operators", checkpoint=config, chain=False)  # what they read is a channel


def add_source(pipeline: strobe.Pipeline, data: Path) -> None:
    @pipeline.stage(uid="events", trigger={"availableNow": True})
    def events(spark: SparkSession) -> DataFrame:
        return read_events(spark, data)


@pytest.fixture(scope="module")
def job(spark: SparkSession, data: Path, root: Path) -> strobe.Job:
    """The queries as stages, run to the end."""
    pipeline = pipeline_in("aligned")
    add_source(pipeline, data)
    for name, (query, mode, key) in QUERIES.items():
        sink = strobe.DeltaSink(name, key=key or ())
        pipeline.stage(uid=name, reads="events", output_mode=mode, to=sink, max_rows_per_batch=1)(query)
    job = start_job(pipeline, home=str(root / "home"), base=root, spark=spark)
    finish(job)
    return job


@pytest.mark.parametrize("name", QUERIES)
def test_a_stage_gives_what_the_query_gives_as_plain_spark(
    spark: SparkSession, job: strobe.Job, data: Path, root: Path, tmp_path: Path, name: str
) -> None:
    expected = plain(spark, data, name, tmp_path)
    assert sorted(table(spark, root / name)) == sorted(expected)
    assert expected, "a query without a result tells nothing"


def test_late_rows_were_dropped_and_duplicates_too(data: Path, root: Path, job: strobe.Job) -> None:
    """Or else the comparison above would not show that watermarks pass the channels."""
    with duckdb.connect() as db:
        (counted,) = db.execute(f"select count(*), count(distinct id) from '{data}/*.parquet'").fetchall()
    assert counted[0] > counted[1]
    assert delta_rows(root / "distinct", "select count(*), count(distinct id) from t") == [(counted[1], counted[1])]
    (windowed,) = delta_rows(root / "windows", "select sum(n)::BIGINT from t")
    assert 0 < windowed[0] < counted[1]


def test_totals_are_what_python_computes(data: Path, root: Path, job: strobe.Job) -> None:
    events = pq.read_table(data).to_pylist()
    for key, n, amount, largest in delta_rows(root / "totals", "select key, n, amount, largest from t"):
        amounts = [e["amount"] for e in events if e["key"] == key]
        assert (n, amount, largest) == (len(amounts), sum(amounts), str(sorted(set(amounts))[-3:]))


@pytest.mark.parametrize(
    ("name", "column", "option"), [("distinct", "id", {}), ("totals", "key", {"stateVarName": "total"})]
)
def test_a_checkpoint_holds_all_that_the_state_needs(
    spark: SparkSession, job: strobe.Job, data: Path, tmp_path: Path, name: str, column: str, option: dict[str, str]
) -> None:
    """Laid out somewhere else, the stage's files read as its state when it had read so many files."""
    manifests = {m.nodes[NodeId(name)].batch: m for m in check_checkpoints(job, whole=True)}
    manifests.pop(NOTHING, None)
    channel = channel_rows(job.home.path(job.home.layout.channel(NodeId("events"))))
    for manifest in list(manifests.values())[:: max(1, len(manifests) - 1)]:
        position = manifest.nodes[NodeId(name)].inputs[ChannelId("events")]
        files = sum(rows > 0 for version, rows in channel.items() if version <= position)
        read = pq.read_table([str(p) for p in sorted(data.iterdir())[:files]])
        directory = tmp_path / str(manifest.snapshot)
        job.store.lay_out(manifest, f"nodes/{name}/files/", directory)
        state = spark.read.format("statestore").options(**option).load(str(directory)).collect()
        assert sorted(row.key[column] for row in state) == sorted(set(read[column].to_pylist()))


# ── a join, and types ───────────────────────────────────────────────────────────────────────────────────────────────

TYPED = """
    id,
    if(id % 3 = 0, null, cast(amount as decimal(38, 10)) / 7) as dec,
    cast(amount as decimal(5, 0)) as small,
    ts,
    cast(ts as timestamp_ntz) as local,
    cast(ts as date) as day,
    if(id % 4 = 0, null, cast(concat('bytes ', id) as binary)) as bytes,
    if(id % 5 = 0, null, array(id, null, amount)) as list,
    map('a', amount, cast(id as string), null) as pairs,
    named_struct('x', id, 'inner',
                 if(id % 2 = 0, null, named_struct('y', ts, 'z', array(named_struct('w', key))))) as deep,
    cast(id % 100 as tinyint) as tiny, cast(id as smallint) as short, cast(amount as float) / 3 as single,
    amount / 7 as double, id % 2 = 0 as flag, cast(null as string) as nothing
"""


@pytest.fixture(scope="module")
def joined(spark: SparkSession, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Orders and payments joined, and a stage that passes on every type. Where the tables are."""
    root = tmp_path_factory.mktemp("joined")
    pipeline = pipeline_in("unaligned")
    add_source(pipeline, data)

    @pipeline.stage(uid="orders", reads="events")
    def orders(events: DataFrame) -> DataFrame:
        return events.where("key < 2").selectExpr("id as order", "amount", "ts as ordered")

    @pipeline.stage(uid="payments", reads="events", max_rows_per_batch=1)
    def payments(events: DataFrame) -> DataFrame:
        return events.where("key >= 2").selectExpr("id as payment", "amount as paid", "ts as at")

    @pipeline.stage(uid="settled", reads=["orders", "payments"], to=strobe.DeltaSink("settled"))
    def settled(orders: DataFrame, payments: DataFrame) -> DataFrame:
        left, right = orders.withWatermark("ordered", "1 hour"), payments.withWatermark("at", "2 hours")
        return left.join(
            right, F.expr("amount = paid and at between ordered and ordered + interval 2 minutes"), "leftOuter"
        ).select("order", "payment", "amount")

    @pipeline.stage(uid="typed", reads="events")
    def typed(events: DataFrame) -> DataFrame:
        return events.selectExpr(*_columns(TYPED))

    @pipeline.stage(uid="passed", reads="typed", to=strobe.DeltaSink("passed"))
    def passed(typed: DataFrame) -> DataFrame:
        return typed

    job = start_job(pipeline, home=str(root / "home"), base=root, spark=spark)
    finish(job)
    check_checkpoints(job, whole=True)
    return root


def _columns(text: str) -> list[str]:
    """A list of columns as selectExpr takes it: split at the commas outside of brackets."""
    columns, depth, start = [], 0, 0
    for at, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            columns.append(text[start:at].strip())
            start = at + 1
    return [*columns, text[start:].strip()]


def test_two_streams_are_joined_within_a_time(data: Path, joined: Path) -> None:
    """No row is late by so much, so the pairs are those of a plain join; who has no partner waits for the watermark."""
    source = f"'{data}/*.parquet'"
    with duckdb.connect() as db:
        expected = db.execute(
            f"""select o.id, p.id, o.amount from {source} o join {source} p on o.key < 2 and p.key >= 2
                and o.amount = p.amount and p.ts between o.ts and o.ts + interval 2 minutes order by 1, 2"""
        ).fetchall()
    assert delta_rows(joined / "settled", 'select "order", payment, amount from t order by 1, 2') == expected
    assert len(expected) > 5


def test_every_type_passes_two_channels_unchanged(spark: SparkSession, data: Path, joined: Path) -> None:
    expected = spark.read.schema(DDL).parquet(str(data)).selectExpr(*_columns(TYPED))
    files = DeltaTable(str(joined / "passed")).file_uris()
    found = spark.read.schema(expected.schema).parquet(*files)
    assert sorted(found.collect(), key=str) == sorted(expected.collect(), key=str)
    assert table(spark, joined / "passed"), "nothing has come through"

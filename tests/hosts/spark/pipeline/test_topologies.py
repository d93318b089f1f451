"""Graphs of every shape on real Spark: the tables are right, and so is every checkpoint that was taken on the way."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.job.job import start_job
from strobe.store.manifest import Manifest
from tests.support.spark.jobs import channel_rows, check_checkpoints, finish
from tests.support.spark.ledger_data import delta_rows, read_transfers, write_transfers

pytestmark = pytest.mark.spark

BOUNDED = {"availableNow": True}
EVERY_MODE = ["aligned", "unaligned", "aligned-with-timeout"]
TWO_MODES = ["aligned", "unaligned"]


def pipeline_in(mode: str) -> strobe.Pipeline:
    """Checkpoints as often as they come; all are kept, so that all are judged at the end. Nothing is chained: these
    are shapes of channels."""
    return strobe.Pipeline(
        "shape",
        checkpoint=strobe.CheckpointConfig(
            interval=0.5, retained=1000, tolerable_failures=1000, mode=mode, alignment_timeout=0.2
        ),
        chain=False,
    )


def add_source(pipeline: strobe.Pipeline, uid: str, data: Path) -> None:
    @pipeline.stage(uid=uid, trigger=BOUNDED)
    def source(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data)


def run(pipeline: strobe.Pipeline, root: Path, spark: SparkSession) -> list[Manifest]:
    """To the end. The checkpoints that were taken, the last one of which is of a system at rest."""
    job = start_job(pipeline, home=str(root / "home"), base=root, spark=spark)
    finish(job)
    return check_checkpoints(job, whole=True)


def expected(query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as db:
        rows: list[tuple[Any, ...]] = db.execute(query).fetchall()
        return rows


@pytest.mark.parametrize("mode", TWO_MODES)
def test_one_channel_feeds_several_stages_and_a_chain(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    data = write_transfers(tmp_path / "in", files=4, rows=60)
    pipeline = pipeline_in(mode)
    add_source(pipeline, "transfers", data)

    @pipeline.stage(uid="large", reads="transfers", to=strobe.DeltaSink("large"))
    def large(transfers: DataFrame) -> DataFrame:
        return transfers.where("amount >= 50").select("id", "amount")

    @pipeline.stage(uid="larger", reads="large", to=strobe.DeltaSink("larger"))
    def larger(large: DataFrame) -> DataFrame:
        return large.where("amount >= 75").select("id")

    @pipeline.stage(uid="sent", reads="transfers", output_mode="update", to=strobe.DeltaSink("sent", key="src"))
    def sent(transfers: DataFrame) -> DataFrame:
        return transfers.groupBy("src").agg(F.sum("amount").alias("total"))

    run(pipeline, tmp_path, spark)
    source = f"'{data}/*.parquet'"
    for table, least in (("large", 50), ("larger", 75)):
        found = delta_rows(tmp_path / table, "select id from t order by 1")
        assert found == expected(f"select id from {source} where amount >= {least} order by 1")
    found = delta_rows(tmp_path / "sent", "select src, total::BIGINT from t order by 1")
    assert found == expected(f"select src, sum(amount)::BIGINT from {source} group by 1 order by 1")


@pytest.mark.parametrize("mode", EVERY_MODE)
def test_a_diamond_is_joined_again(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    data = write_transfers(tmp_path / "in", files=4, rows=40)
    pipeline = pipeline_in(mode)
    add_source(pipeline, "transfers", data)

    @pipeline.stage(uid="fees", reads="transfers")
    def fees(transfers: DataFrame) -> DataFrame:
        return transfers.select("id", (F.col("amount") * 2).alias("fee"))

    @pipeline.stage(uid="checked", reads="transfers", max_rows_per_batch=40)
    def checked(transfers: DataFrame) -> DataFrame:
        return transfers.where("src <> dst").select("id", "src")

    @pipeline.stage(uid="charged", reads=["fees", "checked"], to=strobe.DeltaSink("charged"))
    def charged(fees: DataFrame, checked: DataFrame) -> DataFrame:
        return fees.join(checked, "id").select("id", "src", "fee")

    run(pipeline, tmp_path, spark)
    found = delta_rows(tmp_path / "charged", "select id, src, fee::BIGINT from t order by 1")
    assert found == expected(
        f"select id, src, (amount * 2)::BIGINT from '{data}/*.parquet' where src <> dst order by 1"
    )


@pytest.mark.parametrize("mode", TWO_MODES)
def test_inputs_of_very_different_speed_are_read_in_whole_commits(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    many = write_transfers(tmp_path / "many", files=10, rows=10, seed=1)
    few = write_transfers(tmp_path / "few", files=2, rows=200, seed=2)
    pipeline = pipeline_in(mode)
    add_source(pipeline, "many", many)
    add_source(pipeline, "few", few)
    batches: dict[int, Counter[str]] = {}

    def count(batch: DataFrame, batch_id: int) -> None:
        batches[batch_id] = Counter(row.origin for row in batch.collect())

    @pipeline.stage(
        uid="both",
        reads=["many", "few"],
        max_rows_per_batch=25,
        to=[strobe.DeltaSink("both"), strobe.ForeachBatchSink(count)],
    )
    def both(many: DataFrame, few: DataFrame) -> DataFrame:
        return many.select("id", F.lit("many").alias("origin")).union(few.select("id", F.lit("few").alias("origin")))

    run(pipeline, tmp_path, spark)
    found = delta_rows(tmp_path / "both", "select origin, id from t order by 1, 2")
    assert found == [("few", n) for n in range(400)] + [("many", n) for n in range(100)]
    assert {n["many"] for n in batches.values()} <= {0, 10, 20}, "three commits are more than the limit"
    assert {n["few"] for n in batches.values()} <= {0, 200}, "one commit is more than the limit, and comes whole"


@pytest.mark.parametrize("mode", TWO_MODES)
def test_parts_that_nothing_joins_are_one_checkpoint(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    left = write_transfers(tmp_path / "left", files=4, rows=30, seed=1)
    right = write_transfers(tmp_path / "right", files=2, rows=30, seed=2)
    pipeline = pipeline_in(mode)
    add_source(pipeline, "l", left)
    add_source(pipeline, "r", right)

    @pipeline.stage(uid="left", reads="l", to=strobe.DeltaSink("out/left"))
    def from_left(l: DataFrame) -> DataFrame:  # noqa: E741
        return l.select("id", "amount")

    @pipeline.stage(uid="right", reads="r", output_mode="update", to=strobe.DeltaSink("out/right", key="dst"))
    def from_right(r: DataFrame) -> DataFrame:
        return r.groupBy("dst").count()

    manifests = run(pipeline, tmp_path, spark)
    assert all(set(m.nodes) == {"l", "r", "left", "right"} for m in manifests)
    found = delta_rows(tmp_path / "out/left", "select id, amount from t order by 1")
    assert found == expected(f"select id, amount from '{left}/*.parquet' order by 1")
    found = delta_rows(tmp_path / "out/right", "select dst, count from t order by 1")
    assert found == expected(f"select dst, count(*) from '{right}/*.parquet' group by 1 order by 1")


@pytest.mark.parametrize("mode", EVERY_MODE)
def test_a_loop_goes_round_until_nothing_is_left_and_then_ends(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    data = write_transfers(tmp_path / "in", files=3, rows=10)
    pipeline = pipeline_in(mode)

    @pipeline.stage(uid="numbers", trigger=BOUNDED)
    def numbers(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data).selectExpr("id", "id % 5 as n")

    @pipeline.stage(uid="steps", reads=["numbers", strobe.feedback("less", "id BIGINT, n BIGINT")])
    def steps(numbers: DataFrame, less: DataFrame) -> DataFrame:
        return numbers.union(less)

    @pipeline.stage(uid="less", reads="steps")
    def less(steps: DataFrame) -> DataFrame:
        return steps.where("n > 0").selectExpr("id", "n - 1 as n")

    @pipeline.stage(uid="trace", reads="steps", to=strobe.DeltaSink("trace"))
    def trace(steps: DataFrame) -> DataFrame:
        return steps

    manifests = run(pipeline, tmp_path, spark)
    found = delta_rows(tmp_path / "trace", "select id, n from t order by 1, 2")
    assert found == [(n, k) for n in range(30) for k in range(n % 5 + 1)]
    looped = channel_rows(tmp_path / "home" / str(manifests[-1].channels["less"].location))  # type: ignore[index]
    assert sum(looped.values()) == sum(n % 5 for n in range(30))


@pytest.mark.parametrize("mode", TWO_MODES)
def test_a_stage_may_use_one_channel_several_times(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    data = write_transfers(tmp_path / "in", files=4, rows=40)
    pipeline = pipeline_in(mode)
    add_source(pipeline, "transfers", data)

    @pipeline.stage(uid="postings", reads="transfers", to=strobe.DeltaSink("postings"))
    def postings(transfers: DataFrame) -> DataFrame:
        debit = transfers.selectExpr("id", "src as account", "-amount as delta")
        return debit.union(transfers.selectExpr("id", "dst as account", "amount as delta"))

    @pipeline.stage(uid="pairs", reads="transfers", max_rows_per_batch=40, to=strobe.DeltaSink("pairs"))
    def pairs(transfers: DataFrame) -> DataFrame:
        there = transfers.where("src < 5").selectExpr("id as there", "src as a", "dst as b")
        back = transfers.where("dst < 5").selectExpr("id as back", "src as c", "dst as d")
        return there.join(back, F.expr("b = c and a = d")).select("there", "back")

    run(pipeline, tmp_path, spark)
    source = f"'{data}/*.parquet'"
    found = delta_rows(tmp_path / "postings", "select id, account, delta::BIGINT from t order by 1, 2, 3")
    assert found == expected(
        f"""select id, src, (-amount)::BIGINT from {source} union all
            select id, dst, amount::BIGINT from {source} order by 1, 2, 3"""
    )
    found = delta_rows(tmp_path / "pairs", "select there, back from t order by 1, 2")
    assert found == expected(
        f"""select t.id, b.id from {source} t join {source} b
            on t.dst = b.src and t.src = b.dst and t.src < 5 order by 1, 2"""
    )

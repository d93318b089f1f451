"""Chained stages: no query, no channel, the same rows, the same laws."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType

import strobe
from strobe.cli.main import main
from strobe.hosts.spark.channel.gate import Gate, GateHandler
from strobe.hosts.spark.channel.schema import channel_schema
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.job.rehearse import dry_resume, dry_run
from strobe.hosts.spark.restore.chains import lay_chains
from strobe.hosts.spark.restore.plan import RestoreOptions, RestorePlan
from strobe.hosts.spark.restore.resume import ResumePlan
from strobe.hosts.spark.stage.assemble import draft_stages
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId
from strobe.store.chained import chained_in
from tests.support.spark import restoring
from tests.support.spark.jobs import check_checkpoints, eventually, finish
from tests.support.spark.ledger_data import delta_rows, expected_balances, read_transfers, write_transfers
from tests.support.spark.restoring import BOUNDED, balances_of, start

pytestmark = pytest.mark.spark

LEDGER = Path(__file__).parents[3] / "support" / "spark" / "pipelines" / "ledger_job.py"
INTO_BALANCES = {"transfers": "balances", "postings": "balances"}


ledger = partial(restoring.ledger, chain=True, bounded=True, seen=False)


def await_balances(job: strobe.Job, root: Path) -> None:
    wanted = expected_balances(root / "in")
    eventually(
        lambda: (root / "balances/_delta_log").is_dir() and balances_of(root) == wanted, "all transfers booked", job
    )


def test_a_chained_ledger_is_stopped_resumed_rolled_back_and_forked(spark: SparkSession, tmp_path: Path) -> None:
    data = write_transfers(tmp_path / "in", files=2)
    job = start(ledger(data, bounded=False), tmp_path, spark)
    try:
        await_balances(job, tmp_path)
        assert list(job.runners) == ["balances"]
        assert [(s.uid, s.chained_into) for s in job.status().stages] == [*INTO_BALANCES.items(), ("balances", "")]
        assert [(c.producer, c.consumer, c.chained) for c in job.status().channels] == [
            ("transfers", "postings", True), ("postings", "balances", True),
        ]  # fmt: skip
        early = job.checkpoint()
        savepoint = job.savepoint(tmp_path / "savepoint")
        write_transfers(data, files=3)
        await_balances(job, tmp_path)
        (*_, last) = check_checkpoints(job)
        assert chained_in(last) == INTO_BALANCES
        assert (tuple(last.nodes), tuple(last.channels)) == (("balances",), ())
    finally:
        job.stop()
    assert not (tmp_path / "home/jobs/ledger/channels").exists()
    write_transfers(data, files=4)
    run_resumed(ledger(data), tmp_path, spark)
    assert balances_of(tmp_path) == expected_balances(data)

    run_resumed(ledger(data), tmp_path, spark, snapshot=f"ledger/{early}")
    assert balances_of(tmp_path) == expected_balances(data)

    fork = tmp_path / "fork"
    rows = {"sinks_from": (str(tmp_path),)}
    job = start(ledger(data), tmp_path, spark, home="fork/home", base="fork", snapshot=savepoint, **rows)
    try:
        finish(job)
    finally:
        job.stop()
    assert balances_of(fork) == expected_balances(data)

    # Two files were read at the savepoint, four at the newest checkpoint. Nothing is lost or comes twice.
    places = {"home": "parted/home", "base": "parted", **rows}
    run_parted(ledger(data, seen=True), tmp_path, spark, ["postings", "balances"], snapshot=savepoint, **places)
    posted = delta_rows(tmp_path / "parted/postings", "select count(*), count(distinct id), min(id) from t")
    assert posted == [(2 * 3 * 200, 3 * 200, 2 * 200)]
    run_parted(ledger(data, chain=False), tmp_path, spark, ["transfers", "postings", "balances"], snapshot="ledger")
    run_resumed(ledger(data, chain=False), tmp_path, spark, ["transfers", "postings", "balances"])
    assert balances_of(tmp_path) == expected_balances(data)


@pytest.mark.slow
def test_a_chained_job_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    """The source is read in two places of its reader's plan. Killed with a batch in the sink and not yet Spark's."""
    data = write_transfers(tmp_path / "in", files=4, rows=100)
    with (tmp_path / "said").open("wb") as said:
        for point, code in (("batch.in-sink:2", -9), ("batch.computed@postings", -9), ("", 0)):
            run = subprocess.run(
                [sys.executable, "-m", "strobe.cli.main", "run", LEDGER, "--home", tmp_path / "home"],
                env={
                    **os.environ, "LEDGER_DATA": str(data), "LEDGER_OUT": str(tmp_path / "out"), "LEDGER_CHAIN": "1",
                    "BOUNDED": "1", "STROBE_CRASH_AT": point,
                },
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, check=False, timeout=600,
            )  # fmt: skip
            assert run.returncode == code, (tmp_path / "said").read_text()
    log = (tmp_path / "home/jobs/ledger/logs/driver.log").read_text()
    assert "transfers is chained: the query of postings computes it" in log
    balances = delta_rows(tmp_path / "out/balances", "select account, balance::BIGINT from t order by 1")
    assert balances == expected_balances(data)
    counted = delta_rows(tmp_path / "out/postings", "select count(*), count(distinct (id, account, delta)) from t")
    assert counted == [(800, 800)]


def run_resumed(
    pipeline: strobe.Pipeline, root: Path, spark: SparkSession, runs: Sequence[str] = ("balances",), **options: Any
) -> None:
    job = start(pipeline, root, spark, **options)
    try:
        finish(job)
        assert tuple(job.runners) == tuple(runs)
    finally:
        job.stop()


def test_a_plain_run_gives_a_chained_stage_the_channel_that_it_needs_now(spark: SparkSession, tmp_path: Path) -> None:
    """First a sink in the middle, then a second reader, then chain=False: nothing is lost or comes twice."""
    data = write_transfers(tmp_path / "in", files=2)
    run_resumed(ledger(data), tmp_path, spark)
    write_transfers(data, files=3)
    home = str(tmp_path / "home")
    plan = dry_resume(ledger(data, seen=True), restore=RestoreOptions(), home=home, base=tmp_path, spark=spark)
    assert dict(cast(ResumePlan, plan).stages) == {
        "transfers": "chained, with postings",
        "postings": "goes on behind batch 1, with a query of its own: it was chained into balances",
        "balances": "goes on behind batch 1",
    }
    assert (plan.problems, plan.warnings) == ((), ())
    run_resumed(ledger(data, seen=True), tmp_path, spark, ["postings", "balances"])
    assert balances_of(tmp_path) == expected_balances(data)
    posted = "select count(*), count(distinct id), min(id) from t"
    assert delta_rows(tmp_path / "postings", posted) == [(2 * 200, 200, 2 * 200)]

    write_transfers(data, files=4)
    pipeline = ledger(data, seen=True)
    pipeline.stage("large", reads="transfers", to=strobe.DeltaSink("large"))(lambda transfers: transfers)
    run_resumed(pipeline, tmp_path, spark, ["transfers", "postings", "large", "balances"])
    assert delta_rows(tmp_path / "large", "select count(*), min(id) from t") == [(200, 3 * 200)]
    write_transfers(data, files=5)
    run_resumed(ledger(data, chain=False, seen=True), tmp_path, spark, ["transfers", "postings", "balances"],
                allow_non_restored_state=True)  # fmt: skip
    assert balances_of(tmp_path) == expected_balances(data)
    assert delta_rows(tmp_path / "postings", posted) == [(2 * 3 * 200, 3 * 200, 2 * 200)]


def run_parted(pipeline: strobe.Pipeline, root: Path, spark: SparkSession, runs: list[str], **options: Any) -> None:
    """Restored with channels that the snapshot does not have; then stopped and resumed."""
    for how in (options, {**options, "snapshot": None}):
        job = start(pipeline, root, spark, **how)
        try:
            finish(job)
            assert list(job.runners) == runs
            (*_, last) = check_checkpoints(job)
            assert last.rows_in_flight == 0
        finally:
            job.stop()
        write_transfers(root / "in", files=len(list((root / "in").glob("*.parquet"))) + 1)


def test_a_job_that_has_channels_keeps_them(spark: SparkSession, tmp_path: Path) -> None:
    """Resumed and restored; a stage that is new is not put into a query that was there before."""
    data = write_transfers(tmp_path / "in", files=2)
    run_to_the_end_in(ledger(data, chain=False), tmp_path, spark)
    write_transfers(data, files=3)
    for options in ({}, {"snapshot": "ledger"}):
        job = start(ledger(data), tmp_path, spark, **options)
        try:
            finish(job)
            assert list(job.runners) == ["transfers", "postings", "balances"]
        finally:
            job.stop()
        assert balances_of(tmp_path) == expected_balances(data)
    plan = dry_run(
        ledger(data), restore=RestoreOptions(snapshot="ledger"), home=str(tmp_path / "home"), base=tmp_path, spark=spark
    )
    assert isinstance(plan, RestorePlan)
    assert [c.name for c in plan.channels] == ["transfers", "postings"]
    assert set(plan.kept) == {"transfers", "postings"}
    assert plan.kept[NodeId("postings")].startswith("it had a query of its own")


def run_to_the_end_in(pipeline: strobe.Pipeline, root: Path, spark: SparkSession) -> None:
    job = start(pipeline, root, spark)
    try:
        finish(job)
    finally:
        job.stop()


# ── in the middle, with other types and other operators ─────────────────────────────────────────────────────────────


def shops(data: Path, *, chain: bool) -> strobe.Pipeline:
    """Two sources; one is seen, so it has a channel, which a chained stage reads; the other one is chained. Both meet
    in a union with windows by event time, whose watermark is the reader's own."""
    config = strobe.CheckpointConfig(interval=None)
    pipeline = strobe.Pipeline("shops", checkpoint=config, chain=chain)

    @pipeline.stage(uid="till-1", trigger=BOUNDED, to=strobe.DeltaSink("seen"))
    def till(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data)

    @pipeline.stage(uid="named", reads="till-1")
    def named(till_1: DataFrame) -> DataFrame:
        return till_1.select(
            F.lit("one").alias("shop"), F.array(F.col("src"), F.lit(7)).alias("goods"),
            F.struct(F.lit(1).alias("n"), "amount").alias("how"), "ts",
        )  # fmt: skip

    @pipeline.stage(uid="web.shop", trigger=BOUNDED)
    def web(spark: SparkSession) -> DataFrame:
        rows = read_transfers(spark, data).where("amount > 10")
        return rows.selectExpr("'two' shop", "array(dst) goods", "named_struct('n', 2, 'amount', amount) how", "ts")

    @pipeline.stage(uid="sold", reads=["named", "web.shop"], output_mode="update", to=strobe.DeltaSink("sold"))
    def sold(named: DataFrame, web_shop: DataFrame) -> DataFrame:
        both = named.union(web_shop).withColumn("what", F.explode("goods")).withWatermark("ts", "5 seconds")
        return both.groupBy(F.window("ts", "10 seconds"), "shop", "what").agg(
            F.sum("how.amount").alias("amount"), F.max("how").alias("most")
        )

    return pipeline


def test_a_chained_stage_between_channels_gives_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    """One file a batch on both sides: then the batches of the windows differ between the two, and no row is late."""
    data = write_transfers(tmp_path / "in", files=3, rows=50)
    query = """
        select "window".start::VARCHAR, shop, what, max(amount)::BIGINT, max(most.amount)::BIGINT
        from t group by 1, 2, 3 order by 1, 2, 3
    """
    found = {}
    for chain in (False, True):
        root = tmp_path / str(chain)
        job = start_job(shops(data, chain=chain), home=str(root / "home"), base=root, spark=spark)
        try:
            finish(job)
            computed = {s.uid: s.chained_into for s in job.status().stages}
            assert computed == {"till-1": "", "sold": "", "named": "", "web.shop": ""} | (
                {"named": "sold"} if chain else {}
            )
        finally:
            job.stop()
        found[chain] = delta_rows(root / "sold", query)
    assert found[True] == found[False] != []


# ── plans ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def laid(spark: SparkSession, tmp_path: Path) -> Callable[..., tuple[Mapping[NodeId, str], DataFrame]]:
    """Which stages of a pipeline would be chained, and what its last one computes. Nothing runs."""

    def lay(pipeline: strobe.Pipeline) -> tuple[Mapping[NodeId, str], DataFrame]:
        home = JobHome(tmp_path / "home", pipeline.name)
        with Gate(cast(GateHandler, None)) as gate:
            drafts = draft_stages(pipeline, spark, gate, home)
            runs, chosen = lay_chains(pipeline, drafts, home, RestoreOptions())
        return {uid: s.uid for s in runs.stages.values() for uid in s.chained}, chosen[-1].result

    return lay


def plus_one(column: str, *, always_the_same: bool = True) -> Column:
    function = F.udf(lambda value: value + 1, IntegerType())
    return (function if always_the_same else function.asNondeterministic())(column)


@pytest.mark.parametrize(
    "makes",
    [
        pytest.param(lambda rows: rows.withColumn("x", F.rand()), id="random numbers"),
        pytest.param(
            lambda rows: rows.select(plus_one("src", always_the_same=False).alias("x")), id="other every time"
        ),
        pytest.param(lambda rows: rows.dropDuplicates(["id"]), id="state"),
        pytest.param(lambda rows: rows.limit(3), id="limit"),
        pytest.param(lambda rows: rows.withWatermark("ts", "1 minute"), id="watermark"),
        pytest.param(lambda rows: rows.groupBy("src").count(), id="aggregate"),
        pytest.param(lambda rows: rows.select(plus_one("src").alias("id")), id="function, read twice"),
        pytest.param(lambda rows: rows.observe("seen", F.count("*")), id="observed"),
    ],
)
def test_a_plan_that_makes_a_difference_keeps_its_channel(
    makes: Callable[[DataFrame], DataFrame], laid: Callable[..., Any], tmp_path: Path
) -> None:
    pipeline = strobe.Pipeline("plans", chain=True)
    (tmp_path / "in").mkdir()
    pipeline.stage("rows", output_mode="update")(lambda spark: makes(read_transfers(spark, tmp_path / "in")))
    pipeline.stage("twice", reads="rows", to=strobe.ConsoleSink())(lambda rows: rows.union(rows))
    assert laid(pipeline)[0] == {}


def test_a_reader_sees_columns_as_a_channel_has_them(laid: Callable[..., Any], tmp_path: Path) -> None:
    """Else its state would have another shape, and could not go on with a channel."""
    pipeline = strobe.Pipeline("plans", chain=True)
    (tmp_path / "in").mkdir()

    @pipeline.stage("rows")
    def rows(spark: SparkSession) -> DataFrame:
        fixed = spark.createDataFrame([(1, "x")], "src INT, `a.b` STRING")
        joined = read_transfers(spark, tmp_path / "in").join(F.broadcast(fixed), "src")
        noted = F.col("amount").alias("amount", metadata={"unit": "cent"})
        arrays = F.array(F.lit(1)).alias("ones"), F.struct(F.lit("y").alias("y")).alias("inner")
        return joined.select("`a.b`", noted, F.lit(3).alias("three"), *arrays, plus_one("src").alias("more"))

    pipeline.stage("reader", reads="rows", to=strobe.ConsoleSink())(lambda rows: rows.where("three > 1"))
    chained, result = laid(pipeline)
    assert chained == {"rows": "reader"}
    assert result.schema == channel_schema(result.schema, "rows")
    assert [f.name for f in result.schema.fields] == ["a.b", "amount", "three", "ones", "inner", "more"]


# ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_snapshot_says_what_is_chained(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_transfers(tmp_path / "in", files=1)
    run_resumed(ledger(data), tmp_path, spark)
    with strobe.open_snapshot("ledger", tmp_path / "home") as cut:
        assert sum(cut.state("balances")["balance"].to_pylist()) == 0
        with pytest.raises(Misuse) as asked:
            cut.sql("select * from in_flight.postings")
    assert "Stage 'postings' was chained: the query of 'balances' computed it" in asked.value.next
    for command in (["inspect", "ledger"], ["inspect", "ledger", "--json"], ["verify", "ledger"]):
        with pytest.raises(SystemExit) as ended:
            main([*command, "--home", str(tmp_path / "home")])
        assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "stage transfers is chained: the query of balances computes it" in shown
    assert '"postings": "balances"' in shown

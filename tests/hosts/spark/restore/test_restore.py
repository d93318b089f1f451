"""Restores on real Spark: back in place, as a fork, with a changed file; then on, as if nothing had been."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark import crash_points
from strobe.hosts.spark.job.rehearse import dry_run, rehearse
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.hosts.spark.restore.restorable import why_not_restorable
from strobe.model.errors import Failed, Misuse
from strobe.model.ids import NodeId
from tests.support.spark.jobs import check_checkpoints, eventually, finish, stage
from tests.support.spark.ledger_data import delta_rows, expected_balances, read_transfers, write_transfers
from tests.support.spark.restoring import BOUNDED, await_postings, balances_of, ledger, postings_of, start

pytestmark = pytest.mark.spark


def test_a_rollback_takes_channels_and_tables_back_to_the_checkpoint_and_goes_on_from_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = write_transfers(tmp_path / "in", files=2, rows=50)
    job = start(ledger(data, retained=2), tmp_path, spark)
    await_postings(job, tmp_path, 100)
    first = job.checkpoint(120)
    before = postings_of(tmp_path), balances_of(tmp_path)
    write_transfers(data, files=4, rows=50)
    await_postings(job, tmp_path, 200)
    second = job.checkpoint(120)
    job.stop()
    away = tmp_path / "away"
    away.mkdir()
    late = [data / f"{n:05d}.parquet" for n in (2, 3)]
    for path in late:  # so that the restored job stands still at the cut
        path.rename(away / path.name)

    job = start(ledger(data, retained=2), tmp_path, spark, snapshot=f"ledger/{first}")
    assert (postings_of(tmp_path), balances_of(tmp_path)) == before
    assert (job.home.record.timeline, job.home.record.restoring) == (2, None)
    for path in late:
        (away / path.name).rename(path)
    await_postings(job, tmp_path, 200)
    newer = [job.checkpoint(120), job.checkpoint(120)]
    assert newer[0] > second
    job.stop()
    assert balances_of(tmp_path) == expected_balances(data)
    manifests = check_checkpoints(job)
    # The one that was restored and not claimed stays, beside the two that are retained, and can be restored again.
    assert [m.snapshot for m in manifests] == [first, *newer]
    assert [why_not_restorable(m, tmp_path / "home") for m in manifests] == [None, None, None]

    job = start(ledger(data, retained=2), tmp_path, spark, snapshot=f"ledger/{first}", claim_mode="claim")
    await_postings(job, tmp_path, 200)
    last = job.checkpoint(120)
    job.stop()
    assert balances_of(tmp_path) == expected_balances(data)
    assert list(job.store.list()) == [newer[1], last]


def test_a_fork_and_its_original_go_on_side_by_side(spark: SparkSession, tmp_path: Path) -> None:
    data = write_transfers(tmp_path / "in", files=2, rows=40)
    original = start(ledger(data), tmp_path, spark)
    await_postings(original, tmp_path, 80)
    checkpoint = original.checkpoint(120)
    fork = start(
        ledger(data).renamed("fork"), tmp_path, spark.newSession(), base="fork", snapshot=f"ledger/{checkpoint}"
    )
    write_transfers(data, files=3, rows=40)
    for job, root in ((original, tmp_path), (fork, tmp_path / "fork")):
        await_postings(job, root, 120)
        check_checkpoints(job)
    fork.stop()
    write_transfers(data, files=4, rows=40)
    await_postings(original, tmp_path, 160)
    original.checkpoint(120)
    original.stop()
    assert len(postings_of(tmp_path / "fork")) == 240, "the fork has ended: it takes no part in what comes later"
    assert balances_of(tmp_path) == expected_balances(data)

    again = start(ledger(data, bounded=True).renamed("fork"), tmp_path, spark, base="fork")
    finish(again)
    assert postings_of(tmp_path / "fork") == postings_of(tmp_path)
    assert balances_of(tmp_path / "fork") == expected_balances(data)
    with pytest.raises(Misuse, match="has its own history"):
        start(ledger(data).renamed("fork"), tmp_path, spark, base="fork", snapshot=f"ledger/{checkpoint}")


def test_an_unfinished_restore_is_finished_first_or_says_that_its_snapshot_is_gone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_transfers(tmp_path / "in", files=2, rows=20)
    pipeline = strobe.Pipeline("copy", checkpoint=strobe.CheckpointConfig(interval=None, retained=5))

    @pipeline.stage(uid="copied", trigger=BOUNDED, to=strobe.DeltaSink("copied"))
    def copied(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data).select("id")

    finish(start(pipeline, tmp_path, spark))
    write_transfers(data, files=3, rows=20)
    finish(start(pipeline, tmp_path, spark))

    class Killed(BaseException):
        pass

    def point(name: str, stage: str = "") -> None:
        if name == "restore.begun":
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(crash_points, "point", point)
        with pytest.raises(Killed):
            start(pipeline, tmp_path, spark, snapshot="copy/1")
    job = start(pipeline, tmp_path, spark)
    assert (job.home.record.timeline, job.home.record.restoring, job.home.record.pinned) == (3, None, (1,))
    finish(job)
    assert ids_of(tmp_path / "copied") == list(range(60))

    with monkeypatch.context() as patch:
        patch.setattr(crash_points, "point", point)
        with pytest.raises(Killed):
            start(pipeline, tmp_path, spark, snapshot="copy/1")
    (tmp_path / "home/jobs/copy/snapshots/chk-000001/manifest.json").unlink()
    with pytest.raises(Failed, match=r"was not finished, and cannot be now: .*chk-000001 is not a snapshot"):
        start(pipeline, tmp_path, spark)
    job = start(pipeline, tmp_path, spark, snapshot="copy/2")
    assert job.home.record.restoring is None
    finish(job)
    assert ids_of(tmp_path / "copied") == list(range(60))


# ── a changed file ──────────────────────────────────────────────────────────────────────────────────────────────────


def upgraded(data: Path, *, bounded: bool = False, partitions: int | None = None) -> strobe.Pipeline:
    """The ledger with its stages in another order, other code without state, and two readers more."""
    pipeline = strobe.Pipeline("ledger", checkpoint=strobe.CheckpointConfig(interval=None), partitions=partitions)
    ids: dict[str, Any] = {"reads": "transfers"}

    @pipeline.stage(uid="from-now", to=strobe.DeltaSink("from-now"), **ids)
    def from_now(transfers: DataFrame) -> DataFrame:
        return transfers.select("id")

    @pipeline.stage(uid="from-then", start="earliest", to=strobe.DeltaSink("from-then"), **ids)
    def from_then(transfers: DataFrame) -> DataFrame:
        return transfers.select("id")

    for uid in ("balances", "transfers", "postings"):
        spec = ledger(data, bounded=bounded).stages[NodeId(uid)]
        pipeline.stage(uid=uid, reads=spec.reads, output_mode=spec.output_mode, to=spec.sinks, trigger=spec.trigger)(
            spec.function if uid != "postings" else _postings
        )
    return pipeline


def _postings(transfers: DataFrame) -> DataFrame:
    sides = "inline(array(struct(src as account, -amount as delta), struct(dst as account, amount as delta)))"
    return transfers.selectExpr("id", sides)


def ids_of(path: Path) -> list[int]:
    return [row[0] for row in delta_rows(path, "select id from t order by 1")]


@pytest.mark.parametrize("how", ["resumed", "restored"])
def test_an_upgrade_keeps_state_adds_readers_and_rescales(spark: SparkSession, tmp_path: Path, how: str) -> None:
    data = write_transfers(tmp_path / "in", files=2, rows=30)
    job = start(ledger(data), tmp_path, spark)
    await_postings(job, tmp_path, 60)
    options = {"snapshot": f"ledger/{job.checkpoint(120)}"} if how == "restored" else {}
    job.stop()
    write_transfers(data, files=3, rows=30)
    job = start(upgraded(data, bounded=True, partitions=3), tmp_path, spark, **options)
    finish(job)
    assert balances_of(tmp_path) == expected_balances(data)
    assert ids_of(tmp_path / "from-now") == list(range(60, 90))
    # The checkpoint let go of rows that nobody needed any more.
    assert ids_of(tmp_path / "from-then") == list(range(90) if how == "resumed" else range(60, 90))
    assert check_checkpoints(job)[-1].nodes[NodeId("balances")].partitions == 3

    with pytest.raises(Misuse, match="Stage 'from-now' of job 'ledger' is no longer in the file"):
        start(ledger(data, bounded=True), tmp_path, spark)
    job = start(ledger(data, bounded=True), tmp_path, spark, allow_non_restored_state=True)
    finish(job)
    assert balances_of(tmp_path) == expected_balances(data)


def test_state_that_does_not_fit_is_refused_at_a_plain_resume_too(spark: SparkSession, tmp_path: Path) -> None:
    data = write_transfers(tmp_path / "in", files=2, rows=30)

    def largest(aggregate: Any) -> strobe.Pipeline:
        pipeline = strobe.Pipeline("largest", checkpoint=strobe.CheckpointConfig(interval=None))

        @pipeline.stage(
            uid="largest", output_mode="update", trigger=BOUNDED, to=strobe.DeltaSink("largest", key="account")
        )
        def stage(spark: SparkSession) -> DataFrame:
            transfers = read_transfers(spark, data)
            return transfers.groupBy(F.col("src").alias("account")).agg(aggregate().alias("amount"))

        return pipeline

    finish(start(largest(lambda: F.max("amount")), tmp_path, spark))
    held = delta_rows(tmp_path / "largest", "select * from t order by 1")
    with pytest.raises(Misuse, match=r"max\(amount\).*are now collect_set\(amount\)"):
        start(largest(lambda: F.collect_set("amount")), tmp_path, spark)
    assert delta_rows(tmp_path / "largest", "select * from t order by 1") == held
    finish(start(largest(lambda: F.max("amount")), tmp_path, spark))


def test_a_stage_that_spark_cannot_repartition_is_refused_and_runs_on_as_it_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = write_transfers(tmp_path / "in", files=2, rows=30)
    pipeline = strobe.Pipeline("few", checkpoint=strobe.CheckpointConfig(interval=None))

    @pipeline.stage(uid="few", trigger=BOUNDED, to=strobe.DeltaSink("few"))
    def few(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data).select("id").limit(10)

    job = start(pipeline, tmp_path, spark)
    finish(job)
    with pytest.raises(Misuse, match="cannot go from 2 to 4 partitions: a limit"):
        start(pipeline, tmp_path, spark, partitions=4)
    found = dry_run(
        pipeline, restore=RestoreOptions("few", partitions=4), home=str(tmp_path / "home"), base=tmp_path, spark=spark
    )
    assert "a limit counts in one place" in found.problems[0].what
    finish(start(pipeline, tmp_path, spark))


# ── trying ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_rehearsal_runs_the_first_batches_and_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    data = write_transfers(tmp_path / "in", files=2, rows=30)
    job = start(ledger(data), tmp_path, spark)
    await_postings(job, tmp_path, 60)
    checkpoint = job.checkpoint(120)
    write_transfers(data, files=3, rows=30)
    await_postings(job, tmp_path, 90)
    before = postings_of(tmp_path)
    options = RestoreOptions(f"ledger/{checkpoint}", partitions=3)
    where: dict[str, Any] = {"home": str(tmp_path / "home"), "base": tmp_path, "spark": spark.newSession()}

    tried = rehearse(ledger(data), restore=options, **where)
    assert tried.failure is None, tried.failure
    assert (tried.exit_code, tried.plan.problems) == (0, ())
    assert {uid: words.split()[0] for uid, words in tried.stages} == dict.fromkeys(
        ("transfers", "postings", "balances"), "ran"
    )

    def broken(batch: DataFrame) -> DataFrame:
        raise_at = F.udf(lambda _: 1 // 0, "int")
        return batch.withColumn("id", raise_at("id").cast("bigint"))

    bad = ledger(data)
    good = bad.stages[NodeId("postings")].function
    bad = bad.varied(
        checkpoint=bad.checkpoint,
        restart=bad.restart,
        stages={**bad.stages, NodeId("postings"): _with(bad, "postings", lambda transfers: broken(good(transfers)))},
    )
    failed = rehearse(bad, restore=options, **where)
    assert failed.failure is not None
    assert "ZeroDivisionError" in str(failed.failure)
    assert failed.exit_code == 1

    assert not list((tmp_path / "home").glob(".rehearsal*"))
    assert postings_of(tmp_path) == before
    assert job.state is strobe.JobState.RUNNING, "it ran on meanwhile"
    running = dry_run(ledger(data), restore=options, **where)
    assert "is running" in running.problems[-1].what
    job.stop()


def _with(pipeline: strobe.Pipeline, uid: str, function: Any) -> Any:
    return replace(pipeline.stages[NodeId(uid)], function=function)


# ── graphs of every shape ───────────────────────────────────────────────────────────────────────────────────────────


def shapes(data: Path, *, bounded: bool) -> strobe.Pipeline:
    """One channel with several readers, a diamond, a channel that is read twice by one stage, and a loop."""
    config = strobe.CheckpointConfig(interval=None, mode="unaligned")
    pipeline = strobe.Pipeline("shapes", checkpoint=config)

    @pipeline.stage(uid="transfers", trigger=BOUNDED if bounded else None)
    def transfers(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data)

    @pipeline.stage(uid="fees", reads="transfers")
    def fees(transfers: DataFrame) -> DataFrame:
        return transfers.select("id", (F.col("amount") * 2).alias("fee"))

    @pipeline.stage(uid="checked", reads="transfers", max_rows_per_batch=1)
    def checked(transfers: DataFrame) -> DataFrame:
        return transfers.where("src <> dst").select("id", "src")

    @pipeline.stage(uid="charged", reads=["fees", "checked"], to=strobe.DeltaSink("charged"))
    def charged(fees: DataFrame, checked: DataFrame) -> DataFrame:
        return fees.join(checked, "id").select("id", "src", "fee")

    @pipeline.stage(uid="pairs", reads="transfers", max_rows_per_batch=1, to=strobe.DeltaSink("pairs"))
    def pairs(transfers: DataFrame) -> DataFrame:
        there = transfers.where("src < 5").selectExpr("id as there", "src as a", "dst as b")
        back = transfers.where("dst < 5").selectExpr("id as back", "src as c", "dst as d")
        return there.join(back, F.expr("b = c and a = d")).select("there", "back")

    @pipeline.stage(uid="steps", reads=["transfers", strobe.feedback("less", "id BIGINT, n BIGINT")])
    def steps(transfers: DataFrame, less: DataFrame) -> DataFrame:
        return transfers.selectExpr("id", "id % 4 as n").union(less)

    @pipeline.stage(uid="less", reads="steps")
    def less(steps: DataFrame) -> DataFrame:
        return steps.where("n > 0").selectExpr("id", "n - 1 as n")

    @pipeline.stage(uid="trace", reads="steps", to=strobe.DeltaSink("trace"))
    def trace(steps: DataFrame) -> DataFrame:
        return steps

    return pipeline


def test_every_shape_of_graph_goes_on_from_a_savepoint(spark: SparkSession, tmp_path: Path) -> None:
    data = write_transfers(tmp_path / "in", files=5, rows=20)
    job = start(shapes(data, bounded=False), tmp_path, spark)
    eventually(lambda: stage(job, "pairs").batch >= 0, "it is in the middle of it", job)
    savepoint = job.savepoint()
    job.stop()
    fork = shapes(data, bounded=True).renamed("again")
    finish(start(fork, tmp_path, spark, base="again", snapshot=str(savepoint), partitions=3))
    source = f"'{data}/*.parquet'"
    for table, query in {
        "charged": f"select id, src, (amount * 2)::BIGINT from {source} where src <> dst order by 1",
        "pairs": f"""select t.id, b.id from {source} t join {source} b
                     on t.dst = b.src and t.src = b.dst and t.src < 5 order by 1, 2""",
        "trace": f"select id, unnest(range(id % 4 + 1)) from {source} order by 1, 2",
    }.items():
        assert delta_rows(tmp_path / "again" / table, "select * from t order by 1, 2") == _expected(query), table


def _expected(query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as db:
        rows: list[tuple[Any, ...]] = db.execute(query).fetchall()
        return rows

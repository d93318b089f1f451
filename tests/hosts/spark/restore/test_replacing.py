"""A new stage in place of an old one: without `replaces` the plan says which rows come again, with it none do."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.job.rehearse import dry_run
from strobe.hosts.spark.restore.plan import ChannelAction, RestoreOptions, RestorePlan, StageAction
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId
from tests.hosts.spark.restore.test_restore_operators import Hold
from tests.support.spark.jobs import PATIENCE, Overtaking, eventually, finish, stage
from tests.support.spark.ledger_data import delta_rows, read_transfers, write_transfers
from tests.support.spark.restoring import BOUNDED, await_postings, balances_of, ledger, postings_of, start

pytestmark = pytest.mark.spark

CONFIG = Overtaking(interval=None, retained=100, mode="unaligned")


def tally(
    data: Path,
    *,
    uid: str = "sums",
    replaces: str | None = None,
    value: Callable[[], Any] = lambda: F.sum("amount"),
    second: Path | None = None,
) -> strobe.Pipeline:
    """One stage: a source, and state behind it in the same query."""
    pipeline = strobe.Pipeline("tally", checkpoint=CONFIG)

    @pipeline.stage(
        uid=uid, replaces=replaces, output_mode="update", trigger=BOUNDED, to=strobe.DeltaSink("tally", key="src")
    )
    def sums(spark: SparkSession) -> DataFrame:
        transfers = read_transfers(spark, data)
        if second is not None:
            transfers = transfers.union(read_transfers(spark, second))
        return transfers.groupBy("src").agg(value().cast("long").alias("n"))

    return pipeline


def tally_of(root: Path) -> dict[object, object]:
    return dict(delta_rows(root / "tally", "select src, n from t"))


def plan(pipeline: strobe.Pipeline, root: Path, spark: SparkSession, **options: Any) -> RestorePlan:
    options.setdefault("snapshot", pipeline.name)
    return dry_run(pipeline, restore=RestoreOptions(**options), home=str(root / "home"), base=root, spark=spark)


@pytest.fixture
def past(spark: SparkSession, tmp_path: Path) -> Path:
    """A tally of two files, finished, with a checkpoint at its end; then a third file."""
    data = write_transfers(tmp_path / "in", files=2, rows=30)
    job = start(tally(data), tmp_path, spark)
    finish(job)
    write_transfers(data, files=3, rows=30)
    return data


def test_a_new_source_without_a_position_is_said_with_what_its_rows_reach(spark: SparkSession, tmp_path: Path) -> None:
    data = write_transfers(tmp_path / "in", files=1, rows=30)
    job = start(ledger(data), tmp_path, spark)
    await_postings(job, tmp_path, 30)
    job.checkpoint(120)
    write_transfers(data, files=2, rows=30)
    await_postings(job, tmp_path, 60)
    job.checkpoint(120)
    job.stop()
    found = plan(intake(data, replaces=None), tmp_path, spark, allow_non_restored_state=True)
    (said,) = (w for w in found.warnings if "come again" in w)
    for word in (
        "'transfers'",
        "replaces='transfers'",
        "state of 'balances'",
        "Delta table balances",
        "postings",
        "FileSource",
    ):
        assert word in said, said
    refused = plan(intake(data, replaces=None), tmp_path, spark)
    assert any("replaces='transfers'" in p.next for p in refused.problems)
    assert plan(intake(data), tmp_path, spark).problems == ()
    assert not [w for w in plan(intake(data), tmp_path, spark).warnings if "come again" in w]
    reader = intake(data)

    @reader.stage(uid="audit", reads="postings", start="earliest", to=strobe.DeltaSink("audit"))
    def audit(postings: DataFrame) -> DataFrame:
        return postings

    assert any("60 rows of 'postings' come again" in w for w in plan(reader, tmp_path, spark).warnings)


def test_a_source_with_state_goes_on_where_the_old_one_was_and_its_state_begins_again(
    spark: SparkSession, tmp_path: Path, past: Path
) -> None:
    before = tally_of(tmp_path)
    averaged: dict[str, Any] = {"uid": "means", "replaces": "sums", "value": lambda: F.max("amount")}
    with pytest.raises(Misuse, match="rows would be dropped"):
        start(tally(past, **averaged), tmp_path, spark)
    shown = plan(tally(past, **averaged), tmp_path, spark, allow_non_restored_state=True)
    assert [(s.uid, s.action, s.replaces) for s in shown.stages] == [("means", StageAction.REPLACING, "sums")]
    finish(start(tally(past, **averaged), tmp_path, spark, allow_non_restored_state=True))
    third = spark.read.parquet(str(sorted(past.glob("*.parquet"))[2])).groupBy("src").agg(F.max("amount")).collect()
    assert tally_of(tmp_path) == {**before, **{r[0]: r[1] for r in third}}
    # From now on it is a stage like any other, whatever the file still says.
    write_transfers(past, files=4, rows=30)
    finish(start(tally(past, **averaged), tmp_path, spark))
    later = (
        spark.read.parquet(*map(str, sorted(past.glob("*.parquet"))[2:])).groupBy("src").agg(F.max("amount")).collect()
    )
    assert tally_of(tmp_path) == {**before, **{r[0]: r[1] for r in later}}


def test_a_source_more_begins_at_its_start_beside_the_one_that_goes_on(
    spark: SparkSession, tmp_path: Path, past: Path
) -> None:
    second = write_transfers(tmp_path / "second", files=1, rows=5)
    before = tally_of(tmp_path)
    both = tally(past, uid="both", replaces="sums", second=second)
    finish(start(both, tmp_path, spark, allow_non_restored_state=True))
    files = [sorted(past.glob("*.parquet"))[2], *second.glob("*.parquet")]
    rows = spark.read.parquet(*map(str, files)).groupBy("src").agg(F.sum("amount")).collect()
    assert tally_of(tmp_path) == {**before, **{r[0]: r[1] for r in rows}}


def test_a_source_of_another_kind_cannot_take_the_place(spark: SparkSession, tmp_path: Path, past: Path) -> None:
    pipeline = strobe.Pipeline("tally", checkpoint=CONFIG)

    @pipeline.stage(uid="rate", replaces="sums", to=strobe.DeltaSink("tally", key="src"))
    def rate(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("rate").load().selectExpr("value as src", "value as n")

    (problem,) = plan(pipeline, tmp_path, spark, allow_non_restored_state=True).problems[:1]
    assert "cannot go on where 'sums' was" in problem.what
    assert "FileSource" in problem.what


def intake(
    data: Path, *, replaces: str | None = "transfers", hold: Hold | None = None, bounded: bool = False
) -> strobe.Pipeline:
    """The ledger whose source has another uid."""
    first = "intake" if hold is None else "transfers"
    pipeline = strobe.Pipeline("ledger", checkpoint=CONFIG)

    def transfers(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data)

    def post(transfers: DataFrame) -> DataFrame:
        debit = transfers.select("id", F.col("src").alias("account"), (-F.col("amount")).alias("delta"))
        return debit.union(transfers.select("id", F.col("dst").alias("account"), F.col("amount").alias("delta")))

    def postings(**inputs: DataFrame) -> DataFrame:
        return post(inputs[first])

    def balances(postings: DataFrame) -> DataFrame:
        return postings.groupBy("account").agg(F.sum("delta").alias("balance"))

    takes: dict[str, Any] = {} if first == "transfers" else {"replaces": replaces}
    pipeline.stage(uid=first, trigger=BOUNDED if bounded else None, **takes)(transfers)
    sinks: list[Any] = [strobe.DeltaSink("postings"), *([hold.sink("postings")] if hold else ())]
    pipeline.stage(uid="postings", reads=first, to=sinks, max_rows_per_batch=1)(postings)
    pipeline.stage(
        uid="balances", reads="postings", output_mode="update", to=strobe.DeltaSink("balances", key="account")
    )(balances)
    return pipeline


@pytest.mark.parametrize("kind", ["resume", "savepoint", "fork"])
def test_rows_in_flight_from_a_source_that_is_replaced_arrive_once(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    data = write_transfers(tmp_path / "in", files=4, rows=30)
    hold = Hold(at=1)
    job = start(intake(data, hold=hold), tmp_path, spark)
    eventually(lambda: "postings" in hold.held and stage(job, "transfers").batch >= 3, "files wait", job)
    with ThreadPoolExecutor(1) as pool:
        if kind == "resume":
            taking = pool.submit(lambda: f"ledger/{job.checkpoint()}")
        else:
            taking = pool.submit(lambda: str(job.savepoint(tmp_path / "savepoint")))
        eventually(lambda: bool(job.status().checkpoints), "the snapshot is under way", job)
        hold.raise_to(100)
        snapshot = taking.result(PATIENCE)
    await_postings(job, tmp_path, 120)
    job.stop()
    write_transfers(data, files=5, rows=30)
    new, root = intake(data, bounded=True), tmp_path
    options: dict[str, Any] = {} if kind == "resume" else {"snapshot": snapshot}
    if kind == "fork":
        new, root = new.renamed("copy"), tmp_path / "copy"
        options["sinks_from"] = (str(tmp_path),)
    if kind == "resume":
        shown = {c.name: c for c in plan(new, tmp_path, spark, snapshot=snapshot).channels}
        assert (shown["intake"].action, shown["intake"].rows > 0) == (ChannelAction.REFILLED, True)  # type: ignore[index]
    finish(start(new, root, spark, **options))
    assert len(postings_of(root)) == len(set(postings_of(root))) == 300
    sums: dict[Any, int] = {}
    for _, account, delta in postings_of(root):
        sums[account] = sums.get(account, 0) + delta
    assert dict(balances_of(root)) == sums


def test_a_stage_that_reads_channels_goes_on_where_the_old_one_was(spark: SparkSession, tmp_path: Path) -> None:
    data = write_transfers(tmp_path / "in", files=2, rows=30)
    job = start(ledger(data), tmp_path, spark)
    await_postings(job, tmp_path, 60)
    job.checkpoint(120)
    job.stop()
    write_transfers(data, files=3, rows=30)
    changed = ledger(data, bounded=True)
    del changed._stages[NodeId("balances")]

    @changed.stage(
        uid="counts", reads="postings", replaces="balances", output_mode="update",
        to=strobe.DeltaSink("counts", key="account"),
    )  # fmt: skip
    def counts(postings: DataFrame) -> DataFrame:
        return postings.groupBy("account").agg(F.count("*").alias("n"))

    finish(start(changed, tmp_path, spark, allow_non_restored_state=True))
    total = delta_rows(tmp_path / "counts", "select sum(n)::BIGINT from t")
    assert total == [(60,)], "the rows of the third file, each once"


@pytest.mark.parametrize(("path", "copied"), [("balances", True), ("counts", False)])
def test_the_table_of_a_stage_that_is_replaced_in_a_fork_is_copied_if_it_is_called_the_same(
    spark: SparkSession, tmp_path: Path, path: str, copied: bool
) -> None:
    """A fork has all of its tables elsewhere: what is compared is the path from its base."""
    data = write_transfers(tmp_path / "in", files=2, rows=30)
    finish(start(ledger(data, bounded=True), tmp_path, spark))
    before = balances_of(tmp_path)
    changed = ledger(data, bounded=True).renamed("copy")
    del changed._stages[NodeId("balances")]

    @changed.stage(
        uid="sums", reads="postings", replaces="balances", output_mode="update",
        to=strobe.DeltaSink(path, key="account"),
    )  # fmt: skip
    def sums(postings: DataFrame) -> DataFrame:
        return postings.groupBy("account").agg(F.sum("delta").alias("balance"))

    options: dict[str, Any] = {"snapshot": "ledger", "allow_non_restored_state": True}
    finish(start(changed, tmp_path, spark, base="copy", **options))
    rows = delta_rows(tmp_path / "copy" / path, "select account, balance::BIGINT from t order by 1")
    assert rows == (before if copied else [])


def test_what_cannot_be_replaced_is_said_before_anything_starts(tmp_path: Path) -> None:
    both = ledger(tmp_path)
    both.stage(uid="again", replaces="transfers", to=strobe.DeltaSink("x"))(lambda spark: spark)
    with pytest.raises(Misuse, match="still there"):
        both.check()
    twice = strobe.Pipeline("twice")
    for uid in ("a", "b"):
        twice.stage(uid=uid, replaces="old", to=strobe.DeltaSink(uid))(lambda spark: spark)
    with pytest.raises(Misuse, match="both replace 'old'"):
        twice.check()

"""Invariants of a running job: asked of its checkpoints in the background, and what follows."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.cli.main import cli
from strobe.hosts.spark.job.invariants import InvariantChecks
from strobe.hosts.spark.job.job import start_job
from strobe.look.asking import Ask
from strobe.model.errors import Misuse
from strobe.model.ids import SnapshotId
from strobe.model.invariants import Outcome, Verdict
from strobe.store.verdicts import read_verdicts

TOTAL = (
    "select sum(x) as total from (select balance as x from state.balances union all select delta from "
    "in_flight.postings) having total <> 0"
)
LIMIT = 1_000_000


def rich(cut: Any) -> list[dict[str, Any]]:
    return [row for row in cut.state("balances").to_pylist() if row["balance"] > LIMIT]


def ledger(root: Path, *, loses: bool = False, on_violation: str = "report") -> strobe.Pipeline:
    """With `loses`, every tenth transfer arrives nowhere."""
    pipeline = strobe.Pipeline("ledger", checkpoint=strobe.CheckpointConfig(interval=0.3))

    @pipeline.stage(uid="transfers", trigger={"availableNow": True})
    def transfers(spark: SparkSession) -> DataFrame:
        schema = "id BIGINT, src INT, dst INT, amount BIGINT"
        return spark.readStream.schema(schema).option("maxFilesPerTrigger", 2).json(str(root / "in"))

    @pipeline.stage(uid="postings", reads="transfers")
    def postings(transfers: DataFrame) -> DataFrame:
        debit = transfers.select(F.col("src").alias("account"), (-F.col("amount")).alias("delta"))
        arriving = transfers.filter("id % 10 <> 0") if loses else transfers
        return debit.union(arriving.select(F.col("dst").alias("account"), F.col("amount").alias("delta")))

    @pipeline.stage(uid="balances", reads="postings", output_mode="update", to=strobe.MemorySink("balances"))
    def balances(postings: DataFrame) -> DataFrame:
        return postings.groupBy("account").agg(F.sum("delta").alias("balance"))

    pipeline.invariant("no money is made", sql=TOTAL, on_violation=on_violation)
    pipeline.invariant("nobody is rich", every=2)(rich)
    return pipeline


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for file in range(4):
        rows = [{"id": file * 50 + i, "src": i % 7, "dst": i % 5, "amount": i + 1} for i in range(50)]
        (tmp_path / "in" / f"{file}.json").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_a_sum_over_state_and_rows_in_flight_holds_in_every_cut(spark: SparkSession, root: Path) -> None:
    job = start_job(ledger(root), home=str(root / "home"), spark=spark)
    assert job.wait(120)
    assert job.status().state == "finished"
    assert {s.name: s.outcome for s in job.status().invariants} == {
        "no money is made": "holds", "nobody is rich": "holds"
    }  # fmt: skip
    verdicts = read_verdicts(root / "home", "ledger")
    assert {v.outcome for v in verdicts} <= {Outcome.HOLDS, Outcome.SKIPPED}
    asked = [v.snapshot for v in verdicts if v.invariant == "no money is made"]
    assert asked[-1] == max(p.snapshot for p in job.status().checkpoints), "the last one is always asked"
    shown = CliRunner().invoke(cli, ["checks", "ledger", "--home", str(root / "home"), "--json"])
    assert {each["invariant"]: each["outcome"] for each in json.loads(shown.output)} == {
        "no money is made": "holds", "nobody is rich": "holds"
    }  # fmt: skip

    (root / "mine.sql").write_text("-- invariant: three\nselect * from state.balances where account < 3;\n")
    found = CliRunner().invoke(cli, ["check", "ledger", "-f", str(root / "mine.sql"), "--home", str(root / "home"),
                                     "--json"], standalone_mode=False)  # fmt: skip
    assert found.return_value == 1
    verdict = json.loads(found.output)[0]
    assert (verdict["invariant"], verdict["outcome"], verdict["count"]) == ("three", "violated", 3)


def test_a_violation_is_reported_with_its_rows_and_the_job_goes_on(spark: SparkSession, root: Path) -> None:
    job = start_job(ledger(root, loses=True), home=str(root / "home"), spark=spark)
    assert job.wait(120)
    assert job.status().state == "finished"
    (status,) = (s for s in job.status().invariants if s.name == "no money is made")
    assert (status.outcome, status.violations > 0) == ("violated", True)
    lost = sum(i + 1 for i in range(0, 50, 10)) * 4
    assert f"total {-lost}" in status.sentence
    checks = CliRunner().invoke(cli, ["checks", "ledger", "--home", str(root / "home")], standalone_mode=False)
    assert checks.return_value == 1
    assert f"total {-lost}" in checks.output


def test_a_violation_that_is_to_end_the_job_ends_it(spark: SparkSession, root: Path) -> None:
    job = start_job(ledger(root, loses=True, on_violation="fail"), home=str(root / "home"), spark=spark)
    assert job.wait(120)
    assert job.status().state == "failed"
    assert "invariant 'no money is made' is violated in snapshot" in job.status().error


def test_what_cannot_be_right_is_refused_before_anything_is_written(spark: SparkSession, root: Path) -> None:
    pipeline = ledger(root)
    pipeline.invariant("wrong", sql="select * from state.balanzes")
    with pytest.raises(Misuse, match="there is no stage 'balanzes'"):
        start_job(pipeline, home=str(root / "home"), spark=spark)
    assert not (root / "home").exists()
    with pytest.raises(Misuse, match="two invariants 'wrong'"):
        pipeline.invariant("wrong", sql="select 1")
    with pytest.raises(Misuse, match="on_violation='explode' is not legal"):
        pipeline.invariant("other", sql="select 1", on_violation="explode")


def test_the_process_that_asks_may_die_and_the_next_snapshot_gets_another(root: Path) -> None:
    """Without Spark: there is no such snapshot, which is said; the point is who says it."""
    (root / "home/jobs/ledger").mkdir(parents=True)
    told: list[Verdict] = []

    def tell(verdict: Verdict, *, holds_back: bool) -> None:
        assert not holds_back
        told.append(verdict)

    checks = InvariantChecks(ledger(root), root / "home", lambda reason: None, tell)
    checks.start()
    try:
        checks.completed(SnapshotId(1))
        assert checks.settle() is None
        first = checks._process
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        checks.completed(SnapshotId(2))
        checks.settle()
        assert checks._process is not first
        seen = [(v.invariant, v.snapshot, v.outcome) for v in read_verdicts(root / "home", "ledger")]
        assert seen == [
            ("no money is made", 1, Outcome.FAILED), ("nobody is rich", 1, Outcome.FAILED),
            ("no money is made", 2, Outcome.FAILED),
        ]  # fmt: skip
        assert tuple(told) == read_verdicts(root / "home", "ledger")
        assert read_verdicts(root / "home", "ledger")[-1].why == "Job 'ledger' has no checkpoint 2."
    finally:
        checks.stop(wait=False)
    assert checks._process is not None
    assert checks._process.poll() is not None


def test_every_second_snapshot_counts_from_the_first_one_with_an_answer(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage that had not run yet when it was asked about may have by the next snapshot, and that may be the last."""
    (root / "home/jobs/ledger").mkdir(parents=True)
    checks = InvariantChecks(ledger(root), root / "home", lambda reason: None)
    outcomes = {1: Outcome.SKIPPED, 2: Outcome.SKIPPED}

    def ask(asked: Ask) -> list[Verdict]:
        outcome = outcomes.get(asked.snapshot, Outcome.HOLDS)
        return [Verdict(name, SnapshotId(asked.snapshot), outcome) for name in asked.invariants]

    monkeypatch.setattr(checks, "_ask", ask)
    checks.start()
    try:
        for snapshot in range(1, 8):
            checks.completed(SnapshotId(snapshot))
            checks.settle()
        asked = [int(v.snapshot) for v in read_verdicts(root / "home", "ledger") if v.invariant == "nobody is rich"]
        assert asked == [1, 2, 3, 5, 7]
    finally:
        checks.stop(wait=False)


def test_who_waits_for_verdicts_does_not_wait_for_snapshots_that_come_later(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "home/jobs/ledger").mkdir(parents=True)
    checks = InvariantChecks(ledger(root), root / "home", lambda reason: None)
    entered, over = threading.Event(), threading.Event()
    waiting, waits = checks._change.wait_for, threading.current_thread()
    in_time: list[bool] = []

    def wait_for(happened: Callable[[], bool], timeout: float | None = None) -> bool:
        if threading.current_thread() is not waits:
            return waiting(happened, timeout)
        entered.set()
        in_time.append(waiting(happened, timeout))
        return in_time[-1]

    def ask(asked: Ask) -> list[Verdict]:
        if asked.snapshot == 1:
            assert entered.wait(60)
            checks.completed(SnapshotId(2))
        else:
            assert over.wait(60), "it was waited for"
        return [Verdict(name, SnapshotId(asked.snapshot), Outcome.HOLDS) for name in asked.invariants]

    monkeypatch.setattr(checks._change, "wait_for", wait_for)
    monkeypatch.setattr(checks, "_ask", ask)
    checks.start()
    try:
        checks.completed(SnapshotId(1))
        assert checks.settle() is None
        assert in_time == [True]
        assert {v.snapshot for v in read_verdicts(root / "home", "ledger")} == {1}
    finally:
        over.set()
        checks.stop(wait=True)

"""Recovery without rollback: stages that fail, jobs that stop, drivers that come twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.checkpoint.files import last_committed
from strobe.hosts.spark.checkpoint.stage_files import stage_checkpoint
from strobe.hosts.spark.job.job import start_job
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId
from strobe.store.manifest import NOTHING
from tests.support.spark.jobs import check_checkpoints, eventually, finish, stage
from tests.support.spark.ledger_data import delta_rows, expected_balances, read_transfers, write_transfers

pytestmark = pytest.mark.spark

PIPELINE = Path(__file__).parents[3] / "support" / "spark" / "pipelines" / "ledger_job.py"
EAGER = strobe.RestartPolicy(attempts=1000, first_pause=0.05, longest_pause=0.2)


def frequent(**options: object) -> strobe.CheckpointConfig:
    settings = {"interval": 0.5, "retained": 100, "tolerable_failures": 100, **options}
    return strobe.CheckpointConfig(**settings)  # type: ignore[arg-type]


def add_postings(pipeline: strobe.Pipeline, data: Path, *, bounded: bool = True) -> None:
    """transfers → postings, into a table."""

    @pipeline.stage(uid="transfers", trigger={"availableNow": True} if bounded else None)
    def transfers(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data)

    @pipeline.stage(uid="postings", reads="transfers", to=strobe.DeltaSink("out/postings"))
    def postings(transfers: DataFrame) -> DataFrame:
        debit = transfers.select("id", F.col("src").alias("account"), (-F.col("amount")).alias("delta"))
        return debit.union(transfers.select("id", F.col("dst").alias("account"), F.col("amount").alias("delta")))


def add_balances(pipeline: strobe.Pipeline) -> None:
    @pipeline.stage(
        uid="balances", reads="postings", output_mode="update", to=strobe.DeltaSink("out/balances", key="account")
    )
    def balances(postings: DataFrame) -> DataFrame:
        return postings.groupBy("account").agg(F.sum("delta").alias("balance"))


def postings_written(root: Path) -> int:
    return int(delta_rows(root / "out/postings", "select count(*) from t")[0][0])


def balances_written(root: Path) -> list[tuple[Any, ...]]:
    return delta_rows(root / "out/balances", "select account, balance::BIGINT from t order by 1")


def await_balances(root: Path, job: strobe.Job) -> None:
    """A checkpoint does not wait for what is on its way to them."""
    eventually(lambda: balances_written(root) == expected_balances(root / "in"), "all is added up", job)


def check_ledger(root: Path, rows: int) -> None:
    counted = delta_rows(root / "out/postings", "select count(*), count(distinct id) from t")
    assert counted == [(2 * rows, rows)]
    assert balances_written(root) == expected_balances(root / "in")


# ── a stage fails ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stage_that_fails_comes_back_by_itself_and_the_others_go_on(spark: SparkSession, tmp_path: Path) -> None:
    data = write_transfers(tmp_path / "in", files=2, rows=50)
    pipeline = strobe.Pipeline("ledger", checkpoint=frequent(), restart=EAGER)
    add_postings(pipeline, data, bounded=False)
    add_balances(pipeline)
    broken = threading.Event()
    seen: dict[int, list[int]] = {}

    def collect(batch: DataFrame, batch_id: int) -> None:
        if broken.is_set():
            raise ValueError("the ledger's auditor is out")
        seen[batch_id] = [row.id for row in batch.collect()]

    @pipeline.stage(uid="audit", reads="transfers", to=strobe.ForeachBatchSink(collect))
    def audit(transfers: DataFrame) -> DataFrame:
        return transfers.select("id")

    job = start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    try:
        eventually(lambda: bool(seen) and postings_written(tmp_path) == 200, "the first files are through", job)
        before = {uid: stage(job, uid) for uid in ("transfers", "postings", "balances")}
        broken.set()
        write_transfers(data, files=3, rows=50)
        eventually(lambda: stage(job, "audit").restarts >= 2, "audit has failed twice", job)
        assert "the ledger's auditor is out" in stage(job, "audit").error

        write_transfers(data, files=4, rows=50)
        eventually(lambda: postings_written(tmp_path) == 400, "the others have read what audit has not", job)
        for uid, then in before.items():
            now = stage(job, uid)
            assert now.batch > then.batch, f"{uid} stood still"
            assert now.restarts == then.restarts, f"{uid} was started again with audit"
        assert job.state is strobe.JobState.RUNNING

        broken.clear()
        eventually(lambda: sum(map(len, seen.values())) == 200, "audit has caught up", job)
        eventually(lambda: stage(job, "audit").error == "", "audit is well", job)
        await_balances(tmp_path, job)
        newest = job.checkpoint()
    finally:
        job.stop()
    assert sorted(n for ids in seen.values() for n in ids) == list(range(200))
    check_ledger(tmp_path, 200)
    manifests = check_checkpoints(job)
    assert manifests[-1].snapshot >= newest


def test_a_stage_that_never_recovers_fails_the_job_which_resumes_once_the_cause_is_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = write_transfers(tmp_path / "in", files=3, rows=50)
    frozen = tmp_path / "frozen"
    frozen.touch()
    marker = str(frozen)

    @F.udf("bigint")
    def checked(account: int, delta: int) -> int:
        if account == 7 and os.path.exists(marker):
            raise ValueError("account 7 is frozen")
        return delta

    def pipeline() -> strobe.Pipeline:
        made = strobe.Pipeline(
            "ledger", checkpoint=frequent(), restart=strobe.RestartPolicy(attempts=2, first_pause=0.05)
        )
        add_postings(made, data)

        @made.stage(
            uid="balances", reads="postings", output_mode="update", to=strobe.DeltaSink("out/balances", key="account")
        )
        def balances(postings: DataFrame) -> DataFrame:
            return postings.groupBy("account").agg(F.sum(checked("account", "delta")).alias("balance"))

        return made

    job = start_job(pipeline(), home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    eventually(lambda: job.state.over, "the job has given up")
    assert job.wait(60)
    assert job.state is strobe.JobState.FAILED
    assert "'balances'" in job.error
    assert "ValueError: account 7 is frozen" in job.error
    assert next(s for s in job.status().stages if s.uid == "balances").restarts == 2

    frozen.unlink()
    again = start_job(pipeline(), home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    finish(again)
    assert again.status().incarnation == job.status().incarnation + 1
    check_ledger(tmp_path, 150)
    check_checkpoints(again)


# ── a job stops, and starts again ───────────────────────────────────────────────────────────────────────────────────


def test_a_job_that_is_stopped_in_the_middle_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    data = write_transfers(tmp_path / "in", files=8, rows=50)
    permits = threading.Semaphore(3)
    waiting = threading.Event()

    def pass_slowly(batch: DataFrame, batch_id: int) -> None:
        if not permits.acquire(blocking=False):
            waiting.set()
            permits.acquire()

    def start() -> strobe.Job:
        pipeline = strobe.Pipeline("ledger", checkpoint=frequent())
        add_postings(pipeline, data)
        add_balances(pipeline)

        @pipeline.stage(uid="slow", reads="transfers", max_rows_per_batch=1, to=strobe.ForeachBatchSink(pass_slowly))
        def slow(transfers: DataFrame) -> DataFrame:
            return transfers

        return start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)

    job = start()
    assert waiting.wait(300)
    stopping = threading.Thread(target=job.stop)
    stopping.start()
    eventually(lambda: job.state is strobe.JobState.STOPPED, "the job is asked to stop")
    permits.release(1000)
    stopping.join()
    done = {uid: last_committed(stage_checkpoint(job.home, uid)) for uid in job.pipeline.stages}
    assert done[NodeId("slow")] == 3, "it must stop after the batch that it was in"

    again = start()
    assert all(s.batch >= (done[NodeId(s.uid)] or NOTHING) for s in again.status().stages), "a stage began again"
    finish(again)
    check_ledger(tmp_path, 400)
    # Each commit is a batch for it; Spark puts an empty one before them if it looks before there is any.
    assert stage(again, "slow").batch >= stage(again, "transfers").batch
    assert stage(again, "slow").lag_rows == 0
    check_checkpoints(again)


def test_a_second_run_of_a_live_job_is_refused_and_the_first_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    data = write_transfers(tmp_path / "in", files=2, rows=50)

    def pipeline() -> strobe.Pipeline:
        made = strobe.Pipeline("ledger", checkpoint=frequent())
        add_postings(made, data, bounded=False)
        add_balances(made)
        return made

    job = start_job(pipeline(), home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    try:
        with pytest.raises(Misuse, match="already running"):
            start_job(pipeline(), home=str(tmp_path / "home"), base=tmp_path, spark=spark)
        run = start_cli(tmp_path)
        output = run.communicate(timeout=120)[0]
        assert run.returncode == 2, output
        assert "already running" in output

        write_transfers(data, files=3, rows=50)
        eventually(lambda: postings_written(tmp_path) == 300, "the first run goes on", job)
        await_balances(tmp_path, job)
        assert job.store.load(job.checkpoint()).incarnation == 1
    finally:
        job.stop()
    check_ledger(tmp_path, 150)


# ── a driver that was given up wakes again ──────────────────────────────────────────────────────────────────────────


def start_cli(root: Path, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "strobe.cli.main", "run", str(PIPELINE), "--home", str(root / "home")],
        env={**os.environ, "LEDGER_DATA": str(root / "in"), "LEDGER_OUT": str(root / "out"), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_a_driver_that_was_given_up_is_fenced_off_when_it_wakes(tmp_path: Path) -> None:
    data = write_transfers(tmp_path / "in", files=3, rows=50)
    old = start_cli(tmp_path, STROBE_LEASE="2")
    new = None
    try:
        eventually((tmp_path / "out/postings/_delta_log").exists, "the old driver is up")
        eventually(lambda: postings_written(tmp_path) > 0, "the old driver works")
        os.kill(old.pid, signal.SIGSTOP)
        silent = (tmp_path / "home/jobs/ledger/lock").stat().st_mtime
        eventually(lambda: _now(tmp_path) > silent + 2, "the lease is over")
        write_transfers(data, files=6, rows=50)
        new = start_cli(tmp_path, STROBE_LEASE="2", BOUNDED="1")
        eventually(lambda: (tmp_path / "home/jobs/ledger/lock").stat().st_mtime > silent, "the new driver has it")
        os.kill(old.pid, signal.SIGCONT)
        said = old.communicate(timeout=120)[0]
        assert old.returncode == 1, said
        assert "fenced" in said
        assert "Traceback" not in said
        output = new.communicate(timeout=300)[0]
        assert new.returncode == 0, output
    finally:
        for process in (old, new):
            if process is not None and process.poll() is None:
                process.kill()
                process.communicate()
    check_ledger(tmp_path, 300)


def _now(root: Path) -> float:
    """By the file system's clock, which is the one that leases are judged by."""
    probe = root / "now"
    probe.touch()
    return probe.stat().st_mtime

"""Sinks that deliver on snapshot, in whole jobs: rows are visible when a snapshot that has them is complete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import strobe
from strobe.cli.main import cli
from strobe.hosts.spark.commit.ledger import PartState, read_ledgers
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.job.rehearse import dry_run
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.model.errors import Failed
from strobe.model.ids import NodeId
from tests.support.spark.jobs import eventually, finish
from tests.support.spark.two_phase import add_file, calls, numbers, visible

pytestmark = pytest.mark.spark


def ids(place: Path) -> list[int]:
    return [int(str(row["id"])) for row in visible(place)]


def await_rows(job: strobe.Job, rows: int) -> None:
    """Until so many rows have come through, and the sink's stage rests."""
    source, gold = (job.runners[NodeId(uid)] for uid in ("source", "gold"))
    eventually(lambda: source.rows_out >= rows and gold.agent.idle, f"{rows} rows", job)


def test_rows_become_visible_with_the_checkpoint_that_contains_them(tmp_path: Path, spark: SparkSession) -> None:
    add_file(tmp_path / "in", 0)
    pipeline = numbers(tmp_path / "in", "out", bounded=False)
    job = start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    await_rows(job, 5)
    assert ids(tmp_path / "out") == []
    first = job.checkpoint()
    eventually(lambda: ids(tmp_path / "out") == list(range(5)), "the first part", job)
    assert [name for name, _ in calls(tmp_path / "out")] == ["open", "prepare", "commit"]
    add_file(tmp_path / "in", 1)
    await_rows(job, 10)
    job.checkpoint()
    eventually(lambda: ids(tmp_path / "out") == list(range(10)), "the second part", job)
    job.cancel()
    ledger = read_ledgers(tmp_path / "home", "numbers")["gold/0"]
    assert ledger.entries == ()
    assert [e.state for e in ledger.done] == [PartState.COMMITTED] * 2
    assert ledger.done[0].handle == f"numbers/gold/0/1/{first}"


def test_a_job_that_ends_has_made_everything_visible(tmp_path: Path, spark: SparkSession) -> None:
    for number in range(3):
        add_file(tmp_path / "in", number)
    job = start_job(numbers(tmp_path / "in", "out"), home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    finish(job)
    assert sorted(ids(tmp_path / "out")) == list(range(15))
    assert job.status().sinks[0].in_doubt == 0


def test_a_refusal_fails_the_snapshot_and_the_next_one_has_the_rows(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/refuse").write_text("row 3 has no name")
    add_file(tmp_path / "in", 0)
    pipeline = numbers(tmp_path / "in", "out", bounded=False, tolerable_failures=3)
    job = start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    await_rows(job, 5)
    with pytest.raises(Failed, match="row 3 has no name"):
        job.checkpoint()
    assert ids(tmp_path / "out") == []
    (tmp_path / "out/refuse").unlink()
    job.checkpoint()
    eventually(lambda: ids(tmp_path / "out") == list(range(5)), "the rows", job)
    job.cancel()


def test_a_commit_that_fails_is_tried_until_it_succeeds_and_snapshots_go_on(
    tmp_path: Path, spark: SparkSession
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/down").touch()
    add_file(tmp_path / "in", 0)
    pipeline = numbers(tmp_path / "in", "out", bounded=False)
    job = start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    await_rows(job, 5)
    first = job.checkpoint()
    eventually(lambda: job.status().sinks[0].failures > 1, "attempts", job)
    assert "the system is down" in job.status().sinks[0].error
    add_file(tmp_path / "in", 1)
    await_rows(job, 10)
    second = job.checkpoint()
    assert job.store.list() == (first, second), "a decision that is not settled must be kept"
    assert ids(tmp_path / "out") == []
    (tmp_path / "out/down").unlink()
    eventually(lambda: ids(tmp_path / "out") == list(range(10)), "both parts", job)
    eventually(lambda: job.store.list() == (second,), "the settled one goes by retention", job)
    assert job.status().sinks[0].failures == 0
    job.cancel()


def test_a_job_that_ends_with_parts_in_doubt_says_so_and_a_rollback_throws_them_away(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    monkeypatch.setattr("strobe.hosts.spark.job.job.SETTLE_PATIENCE", 0.5)
    add_file(tmp_path / "in", 0)
    pipeline = numbers(tmp_path / "in", "out", bounded=False, retained=5)
    job = start_job(pipeline, home=str(home), base=tmp_path, spark=spark)
    await_rows(job, 5)
    first = job.checkpoint()
    eventually(lambda: not job.status().sinks[0].in_doubt and ids(out) == list(range(5)), "the first part", job)
    (out / "down").touch()
    add_file(tmp_path / "in", 1)
    await_rows(job, 10)
    second = job.checkpoint()
    job.cancel()
    shown = ask("transactions", "numbers", "--json", "--home", str(home))
    assert [(p["snapshot"], p["state"]) for p in shown["parts"]] == [(first, "committed"), (second, "in doubt")]
    assert shown["parts"][1]["by_hand"].startswith("mv ")
    assert ask("transactions", f"numbers/{first}", "--json", "--home", str(home))["parts"][0]["state"] == "committed"

    (out / "down").unlink()
    back = RestoreOptions(snapshot=f"numbers/{first}")
    plan = dry_run(numbers(tmp_path / "in", "out"), restore=back, home=str(home), base=tmp_path, spark=spark)
    assert "1 part(s) in doubt will be thrown away" in plan.sinks[0].detail
    assert ids(out) == list(range(5)), "a plan touches nothing"
    restored = start_job(
        numbers(tmp_path / "in", "out", retained=5), home=str(home), base=tmp_path, spark=spark, restore=back
    )
    finish(restored)
    assert sorted(ids(out)) == list(range(10))
    assert ("abort", f"numbers/gold/0/1/{second}") in calls(out)
    refused = dry_run(
        pipeline, restore=RestoreOptions(snapshot=f"numbers/{second}"), home=str(home), base=tmp_path, spark=spark
    )
    assert "which was thrown away" in refused.problems[0].what


def test_the_end_of_all_sources_without_the_last_commit_is_a_failure_and_the_next_run_makes_good(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/down").touch()
    add_file(tmp_path / "in", 0)
    with monkeypatch.context() as patch:
        patch.setattr("strobe.hosts.spark.job.job.SETTLE_PATIENCE", 0.2)
        job = start_job(numbers(tmp_path / "in", "out"), home=str(tmp_path / "home"), base=tmp_path, spark=spark)
        assert job.wait(300)
    assert job.state is strobe.JobState.FAILED
    assert "are prepared and not yet known to be visible" in job.error
    assert ids(tmp_path / "out") == []
    (tmp_path / "out/down").unlink()
    again = start_job(numbers(tmp_path / "in", "out"), home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    finish(again)
    assert ids(tmp_path / "out") == list(range(5))


def test_a_batch_whose_spark_commit_a_power_cut_has_taken_is_not_staged_again(
    tmp_path: Path, spark: SparkSession
) -> None:
    (tmp_path / "in").mkdir()
    pipeline = numbers(tmp_path / "in", "out", bounded=False, retained=5)
    job = start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    job.checkpoint()  # of nothing: for its sake the channel keeps all rows
    add_file(tmp_path / "in", 0)
    await_rows(job, 5)
    job.checkpoint()
    job.cancel()
    assert ids(tmp_path / "out") == list(range(5))
    commits = tmp_path / "home/jobs/numbers/stages/gold/t1/spark/commits"
    last = max((p for p in commits.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)
    add_file(tmp_path / "in", 1)
    again = numbers(tmp_path / "in", "out", retained=5)
    finish(start_job(again, home=str(tmp_path / "home"), base=tmp_path, spark=spark))
    assert last.exists(), "Spark has run the batch once more"
    assert sorted(ids(tmp_path / "out")) == list(range(10))
    assert list((tmp_path / "home/jobs/numbers/sinks/gold/0/t1").glob("*/batch-*")) == []


def test_sinks_with_uids_are_found_again_in_another_order(tmp_path: Path, spark: SparkSession) -> None:
    add_file(tmp_path / "in", 0)

    def two(*names: str) -> strobe.Pipeline:
        pipeline = strobe.Pipeline("numbers", checkpoint=strobe.CheckpointConfig(interval=None))

        @pipeline.stage(
            uid="gold", trigger={"availableNow": True}, to=[strobe.DeltaSink(f"out/{n}").named(n) for n in names]
        )
        def gold(spark):  # type: ignore[no-untyped-def]
            return spark.readStream.schema("id long").parquet(str(tmp_path / "in"))

        return pipeline

    finish(start_job(two("left", "right"), home=str(tmp_path / "home"), base=tmp_path, spark=spark))
    back = RestoreOptions(snapshot="numbers")
    plan = dry_run(two("right", "left"), restore=back, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    assert plan.problems == ()
    found = {step.name: step.position["path"] for step in plan.sinks if isinstance(step.position, dict)}
    assert found == {f"gold/{n}": str(tmp_path / "out" / n) for n in ("right", "left")}


def ask(*words: str) -> Any:
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.output)

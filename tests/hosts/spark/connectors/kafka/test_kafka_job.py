"""From Kafka to Kafka on real Spark: each message once for whoever reads committed ones, offsets in the snapshot."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import strobe
from strobe.hosts.spark.connectors.base import SinkContext
from strobe.hosts.spark.connectors.kafka import source as kafka_source
from strobe.hosts.spark.connectors.kafka import transactions as kafka_transactions
from strobe.model.ids import Incarnation, NodeId, Timeline
from tests.services import Server
from tests.support.spark.jobs import check_checkpoints, eventually, finish, stage
from tests.support.spark.kafka_jobs import await_batches, await_settled, doubled_rows, numbers, once, put_numbers
from tests.support.spark.kafka_world import new_topic, pinned
from tests.support.spark.restoring import start

pytestmark = [pytest.mark.spark, pytest.mark.services("kafka")]


def test_messages_become_visible_with_the_checkpoint_and_each_once(
    spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    source, target = new_topic(kafka, "in"), new_topic(kafka, "out")
    put_numbers(kafka, source, 0, 300)
    job = start(numbers(kafka, source, target), tmp_path, spark)
    await_batches(job, 300)
    assert doubled_rows(kafka, target) == {}
    assert not pinned(kafka, [target]), "no transaction is open before the snapshot is complete"
    job.checkpoint(120)
    await_settled(job)
    assert doubled_rows(kafka, target) == once(0, 300)
    put_numbers(kafka, source, 300, 400)
    await_batches(job, 400)
    assert doubled_rows(kafka, target) == once(0, 300)
    job.stop()

    finish(start(numbers(kafka, source, target, bounded=True), tmp_path, spark))
    assert doubled_rows(kafka, target) == once(0, 400)
    assert not pinned(kafka, [target, "strobe-commits"])


def test_on_batch_messages_are_visible_before_any_checkpoint(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    source, target = new_topic(kafka, "in"), new_topic(kafka, "out")
    put_numbers(kafka, source, 0, 300)
    job = start(numbers(kafka, source, target, delivery="on_batch"), tmp_path, spark)
    await_batches(job, 300)
    assert doubled_rows(kafka, target) == once(0, 300)
    assert job.store.list() == ()
    job.stop()


def test_a_rollback_reads_on_from_the_offsets_of_its_snapshot(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    source, target = new_topic(kafka, "in"), new_topic(kafka, "out")
    put_numbers(kafka, source, 0, 100)
    job = start(numbers(kafka, source, target), tmp_path, spark)
    await_batches(job, 100)
    first = job.checkpoint(120)
    put_numbers(kafka, source, 100, 150)
    await_batches(job, 150)
    job.checkpoint(120)
    await_settled(job)
    job.stop()
    assert doubled_rows(kafka, target) == once(0, 150)

    put_numbers(kafka, source, 150, 180)
    again = numbers(kafka, source, target, bounded=True)
    finish(start(again, tmp_path, spark, snapshot=f"numbers/{first}"))
    # What was sent stays sent: the topic has what came after the snapshot once for each timeline, and nothing else.
    assert doubled_rows(kafka, target) == once(0, 180) + once(100, 150)


def test_a_fork_reads_on_from_the_snapshot_while_the_original_goes_on(
    spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    source, target, other = new_topic(kafka, "in"), new_topic(kafka, "out"), new_topic(kafka, "fork")
    put_numbers(kafka, source, 0, 100)
    job = start(numbers(kafka, source, target), tmp_path, spark)
    await_batches(job, 100)
    snapshot = job.checkpoint(120)
    put_numbers(kafka, source, 100, 160)
    fork = numbers(kafka, source, other, bounded=True, name="fork")
    finish(start(fork, tmp_path, spark.newSession(), snapshot=f"numbers/{snapshot}"))
    assert doubled_rows(kafka, other) == once(100, 160)
    await_batches(job, 160)
    job.checkpoint(120)
    await_settled(job)
    check_checkpoints(job)
    job.stop()
    assert doubled_rows(kafka, target) == once(0, 160)


def test_a_job_whose_transactional_id_was_taken_over_ends_and_says_so(
    spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    source, target = new_topic(kafka, "in"), new_topic(kafka, "out")
    job = start(numbers(kafka, source, target), tmp_path, spark)
    copied = tmp_path / "copied"  # as on another machine, from which the original is not to be seen
    ignored = shutil.ignore_patterns("kafka-owner-at")
    shutil.copytree(tmp_path / "home/jobs/numbers/sinks/doubled/0", copied, ignore=ignored)
    thief = strobe.KafkaSink(kafka, target, key="n")
    schema = spark.sql("SELECT 1L AS n, 2L AS doubled").schema
    thief.open(
        SinkContext(
            job="numbers", stage=NodeId("doubled"), name="doubled/0", timeline=Timeline(1),
            incarnation=Incarnation(99), schema=schema, output_mode="append", base=tmp_path, staging=copied / "t1",
        )
    )  # fmt: skip
    put_numbers(kafka, source, 0, 10)
    await_batches(job, 10)
    job.checkpoint(120)
    assert job.wait(120)
    assert job.state is strobe.JobState.FAILED
    assert "may no longer write" in job.error
    assert "a start of this job that this home knows nothing of" in job.error
    assert doubled_rows(kafka, target) == {}


def away_from(broker: Server, spark: SparkSession, tmp_path: Path, *, attempts: int) -> tuple[strobe.Job, str, str]:
    """A job that has read 50 numbers when its broker dies; its topics."""
    source, target = new_topic(broker.address, "in"), new_topic(broker.address, "out")
    put_numbers(broker.address, source, 0, 50)
    job = start(numbers(broker.address, source, target, attempts=attempts), tmp_path, spark)
    await_batches(job, 50)
    broker.kill()
    return job, source, target


@pytest.mark.slow
def test_a_broker_that_dies_under_a_job_is_waited_for_and_nothing_is_lost_or_sent_twice(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_transactions, "_STILL", 1.0)
    with Server("kafka", tmp_path) as own:
        servers = own.address
        job, source, target = away_from(own, spark, tmp_path, attempts=1000)
        job.checkpoint(300)  # the graph needs no broker for that
        eventually(lambda: job.status().sinks[0].failures > 0, "the commit is tried again", job)
        status = job.status().sinks[0]
        assert status.in_doubt == 1
        assert servers in status.error
        own.start()
        await_settled(job)
        assert doubled_rows(servers, target) == once(0, 50)
        put_numbers(servers, source, 50, 80)
        await_batches(job, 80)
        job.checkpoint(300)
        await_settled(job)
        job.stop()
        assert doubled_rows(servers, target) == once(0, 80)
        assert not pinned(servers, [target, "strobe-commits"])


@pytest.mark.slow
def test_a_source_whose_broker_is_away_is_tried_for_as_long_as_it_takes_and_says_so(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_source, "_PATIENCE_MS", "1500")
    with Server("kafka", tmp_path) as own:
        servers = own.address
        job, source, target = away_from(own, spark, tmp_path, attempts=1)
        eventually(lambda: stage(job, "read").restarts > 2, "more restarts than there are attempts", job)
        assert "imed out" in stage(job, "read").error
        assert job.state is strobe.JobState.RUNNING
        own.start()
        eventually(lambda: stage(job, "read").error == "", "it is well before there is anything to read", job)
        put_numbers(servers, source, 50, 80)
        await_batches(job, 80)
        job.checkpoint(300)
        await_settled(job)
        job.stop()
        assert doubled_rows(servers, target) == once(0, 80)

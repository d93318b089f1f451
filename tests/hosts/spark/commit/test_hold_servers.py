"""Rows that invariants hold back from Kafka and Postgres, on real servers, whatever people do to a job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.cli.main import cli
from strobe.hosts.spark.job.job import Job, start_job
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.model.errors import StrobeError
from tests.support.spark.jobs import eventually
from tests.support.spark.kafka_world import json_rows, new_topic, pinned
from tests.support.spark.postgres_world import Database

pytestmark = [pytest.mark.spark, pytest.mark.services("kafka", "postgres")]

LIMIT = "select account, total from state.totals where total > 1000"


class Shop:
    """Orders, their totals by account to Postgres and Kafka, and orders by minute, when a minute is over, to Kafka."""

    def __init__(self, root: Path, spark: SparkSession, servers: str, database: Database) -> None:
        self.root, self.home, self.spark, self.servers, self.database = root, root / "home", spark, servers, database
        self.totals, self.minutes = new_topic(servers, "totals"), new_topic(servers, "minutes")
        self.jobs: list[Job] = []
        (root / "in").mkdir()
        database.run("CREATE TABLE totals (account text PRIMARY KEY, total bigint)")

    def pipeline(self) -> strobe.Pipeline:
        pipeline = strobe.Pipeline("shop", checkpoint=strobe.CheckpointConfig(interval=None))
        table = strobe.PostgresSink(self.database.dsn, "totals", key="account", delivery="on_snapshot")

        @pipeline.stage(uid="orders")
        def orders(spark: SparkSession) -> DataFrame:
            schema = "account STRING, amount BIGINT, at TIMESTAMP"
            return spark.readStream.schema(schema).json(str(self.root / "in"))

        @pipeline.stage(
            uid="totals", reads="orders", output_mode="update",
            to=[table, strobe.KafkaSink(self.servers, self.totals, key="account")],
        )  # fmt: skip
        def totals(orders: DataFrame) -> DataFrame:
            return orders.groupBy("account").agg(F.sum("amount").alias("total"))

        @pipeline.stage(uid="minutes", reads="orders", to=strobe.KafkaSink(self.servers, self.minutes))
        def minutes(orders: DataFrame) -> DataFrame:
            timed = orders.withWatermark("at", "10 seconds").groupBy(F.window("at", "1 minute").alias("w"))
            return timed.agg(F.count("*").alias("n")).select(F.col("w.start").cast("string").alias("minute"), "n")

        pipeline.invariant("nobody is above the limit", sql=LIMIT, on_violation="hold")
        return pipeline

    def add(self, name: str, **amounts: int) -> None:
        rows = [{"account": a, "amount": n, "at": "2031-05-17T09:30:00Z"} for a, n in amounts.items()]
        (self.root / f"{name}.json").write_text("\n".join(map(json.dumps, rows)))
        (self.root / f"{name}.json").rename(self.root / "in" / f"{name}.json")

    def start(self, snapshot: str | None = None, **options: Any) -> Job:
        restore = RestoreOptions(snapshot=snapshot, **options)
        job = start_job(self.pipeline(), home=str(self.home), spark=self.spark, restore=restore)
        self.jobs.append(job)
        return job

    def bring(self, job: Job, name: str, **amounts: int) -> int:
        """These orders, through all stages, and a checkpoint that contains them."""
        before = {s.uid: s.rows_in_total for s in job.status().stages}
        self.add(name, **amounts)
        eventually(
            lambda: all(s.rows_in_total > before[s.uid] for s in job.status().stages), f"{name} has come through", job
        )
        return int(job.checkpoint())

    def visible(self) -> tuple[dict[str, int], list[tuple[str, int]]]:
        """The table, and the messages of the topic, in order of their totals."""
        table = dict(self.database.rows("SELECT account, total FROM totals"))
        return table, sorted((row["account"], row["total"]) for row in json_rows(self.servers, self.totals))

    def say(self, *words: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, [*words, "--home", str(self.home)], standalone_mode=False)
        if isinstance(done.exception, StrobeError):
            return done.exception.exit_code, str(done.exception)
        if done.exception is not None:
            raise done.exception
        return done.return_value or 0, " ".join(done.output.split())


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path, kafka: str, postgres: str) -> Iterator[Shop]:
    database = Database(postgres)
    shop = Shop(tmp_path, spark, kafka, database)
    try:
        yield shop
    finally:
        for job in shop.jobs:
            job.stop()
        database.drop()


def is_held(job: Job) -> int:
    eventually(lambda: (held := job.status().held) is not None and held.snapshot is not None, "rows are held", job)
    held = job.status().held
    assert held is not None
    assert held.snapshot is not None
    return int(held.snapshot)


def test_what_is_held_stays_so_through_a_cancel_a_rescale_a_stop_and_a_drain_until_it_is_released(shop: Shop) -> None:
    job = shop.start()
    shop.bring(job, "one", ada=10, ben=20)
    assert job._commits.settle(60)
    good = ({"ada": 10, "ben": 20}, [("ada", 10), ("ben", 20)])
    assert shop.visible() == good
    bad = shop.bring(job, "two", ada=2000)
    assert is_held(job) == bad
    later = shop.bring(job, "three", ben=1)
    eventually(lambda: all(sink.held == 2 for sink in job.status().sinks), "both snapshots are judged", job)
    assert shop.visible() == good
    assert len(shop.database.prepared()) == 1, "one transaction has both, so they do not wait for each other's rows"
    assert not pinned(shop.servers, [shop.totals]), "readers of the topic wait for nobody"

    code, said = shop.say("savepoint", "shop", str(shop.root / "beside"))
    assert (code, "goes on from it, once what is held in it is released" in said) == (0, True)
    code, said = shop.say("cancel", "shop")
    assert (code, f"Held: 6 part(s) of snapshots {bad} to {later}" in said) == (0, True)
    assert shop.visible() == good
    # It names what snapshot `later` has brought, and that is what must be released.
    with pytest.raises(StrobeError, match=rf"that are held.*`strobe release shop {later}`"):
        shop.start(str(shop.root / "beside"))

    job = shop.start(partitions=3)
    assert is_held(job) == bad
    code, said = shop.say("stop", "shop", "--savepoint", str(shop.root / "stopped"))
    assert (code, "shop is stopped. Held:" in said) == (0, True)
    with pytest.raises(StrobeError, match="Going back to it would make them visible"):
        shop.start(str(shop.root / "stopped"))

    shop.start()
    code, said = shop.say("stop", "shop", "--drain")
    assert (code, "shop is drained, but not everything is delivered" in said) == (1, True)
    assert shop.visible() == good
    assert json_rows(shop.servers, shop.minutes) == []

    newest = json.loads(shop.say("status", "shop", "--json")[1])["held"]["newest"]
    code, said = shop.say("release", "shop", str(newest))
    assert (code, f"up to {newest} are released" in said) == (0, True)
    assert shop.visible() == good
    job = shop.start()
    assert job._commits.settle(60)
    assert shop.visible() == ({"ada": 2010, "ben": 21}, [("ada", 10), ("ada", 2010), ("ben", 20), ("ben", 21)])
    assert json_rows(shop.servers, shop.minutes) == [{"minute": "2031-05-17 09:30:00", "n": 4}]
    assert shop.database.prepared() == []


def test_going_back_throws_away_what_is_held_and_a_release_goes_as_far_as_it_is_told(shop: Shop) -> None:
    job = shop.start()
    shop.bring(job, "one", ada=10)
    assert job._commits.settle(60)
    shop.bring(job, "two", ada=2000)
    is_held(job)
    held = job.status().held
    assert held is not None
    job.cancel()
    (shop.root / "in" / "two.json").unlink()
    job = shop.start(f"shop/{held.good}", partitions=3)
    assert shop.database.prepared() == []
    assert job.status().held is None
    bad = shop.bring(job, "three", ada=3000)
    assert is_held(job) == bad
    good = ({"ada": 10}, [("ada", 10)])
    assert shop.visible() == good
    mended = shop.bring(job, "four", ada=-3000)
    eventually(lambda: all(sink.held + sink.prepared == 2 for sink in job.status().sinks), "both have their rows", job)
    assert shop.visible() == good, "what holds waits for what does not"
    assert shop.say("release", "shop", str(bad))[0] == 0
    eventually(lambda: job.status().held is None, "what follows holds, and is let go by itself", job)
    assert job._commits.settle(60)
    assert bad < mended
    assert shop.visible() == ({"ada": 10}, [("ada", 10), ("ada", 10), ("ada", 3010)])
    assert shop.say("checks", "shop")[0] == 0

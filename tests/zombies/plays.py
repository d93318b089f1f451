"""How a job comes to each crash point, how another driver finishes it, and what its outputs must be then.

A play is one job in a directory of its own. `live` runs in the process that will be stopped: it brings the job to a
state in which it has something to lose, arms the point, and gives the job a reason to pass it. `take_over` runs
elsewhere, while the first process stands still.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final

import duckdb
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.crash_points import POINTS
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.model.errors import StrobeError
from strobe.model.ids import SnapshotId
from strobe.store.consistency import check_manifest
from strobe.store.places import checkpoints_of
from tests.support.spark.jobs import eventually, finish
from tests.support.spark.ledger_data import delta_rows, read_transfers, write_transfers
from tests.support.spark.orders import windows, windows_in
from tests.support.spark.two_phase import add_file, numbers, visible

__all__ = ["LEFT_OUT", "NOT_IN_A_BUCKET", "PLAYS", "Play", "Stand"]

ROWS: Final = 40  # of a file of transfers
NUMBERS: Final = 5  # of a file of numbers
FEEDING: Final = 1.0  # seconds after which a job that has not come to its point gets another file


class Stand:
    """Whether a job stands at its point yet. Until it does, it is given more to do: which points one more file leads
    past depends on what else happens, on whether a newer checkpoint still needs what an older one had, for one."""

    def __init__(self) -> None:
        self._reached, self._feeding = threading.Event(), threading.Lock()

    def reach(self) -> None:
        """When this returns no more input comes."""
        self._reached.set()
        with self._feeding:
            pass

    def feed_until_reached(self, feed: Callable[[], None]) -> None:
        while True:
            with self._feeding:
                if self._reached.is_set():
                    return
                feed()
            self._reached.wait(FEEDING)


class Play(ABC):
    points: ClassVar[tuple[str, ...]]
    name: ClassVar[str]

    def __init__(self, root: Path, store: str | None) -> None:
        """A job below `root`, its checkpoints there or in the bucket `store`."""
        self.root = root
        self.store = store
        self.job: strobe.Job | None = None

    @abstractmethod
    def pipeline(self, *, bounded: bool) -> strobe.Pipeline: ...

    @abstractmethod
    def live(self, spark: SparkSession, arm: Callable[[], Stand]) -> None: ...

    @abstractmethod
    def check(self) -> None:
        """The outputs of the job that has come to its end."""

    def take_over(self, spark: SparkSession) -> None:
        """Another driver, to the job's end."""
        self.to_the_end(spark)

    def go_on(self, spark: SparkSession) -> None:
        """One more driver, with more to do, after the one that was given up has done its worst."""
        self.feed()
        self.to_the_end(spark)

    @abstractmethod
    def feed(self) -> None:
        """More input."""

    # ── what plays share ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def home(self) -> Path:
        return self.root / "home"

    def start(self, spark: SparkSession, *, bounded: bool = False, **options: Any) -> strobe.Job:
        self.job = start_job(
            self.pipeline(bounded=bounded),
            home=str(self.home), base=self.root, spark=spark, restore=RestoreOptions(**options),
        )  # fmt: skip
        return self.job

    def to_the_end(self, spark: SparkSession, **options: Any) -> None:
        job = self.start(spark, bounded=True, **options)
        try:
            finish(job)
        finally:
            job.stop()

    def with_store(self, pipeline: strobe.Pipeline, **settings: Any) -> strobe.Pipeline:
        pipeline.checkpoint = replace(pipeline.checkpoint, store=self.store, **settings)
        return pipeline

    def snapshots(self) -> tuple[SnapshotId, ...]:
        """The complete checkpoints, each of which is sound."""
        store = checkpoints_of(self.home, self.name)
        for snapshot in store.list():
            assert [p for p in store.verify(snapshot) if p.harmful] == []
            assert check_manifest(store.load(snapshot)) == ()
        return store.list()

    def newest(self) -> str:
        return f"{self.name}/{self.snapshots()[-1]}"


class Ledger(Play):
    """A job at work: batches, checkpoints, retention, trimming."""

    points = tuple(p for p in POINTS if p.startswith(("batch.", "snapshot.", "channel.", "store.")))
    name = "ledger"
    chain = False  # it stands at points of channels, too

    def pipeline(self, *, bounded: bool) -> strobe.Pipeline:
        pipeline = strobe.Pipeline("ledger", chain=self.chain)

        @pipeline.stage(uid="transfers", trigger={"availableNow": True} if bounded else None)
        def transfers(spark: SparkSession) -> DataFrame:
            return read_transfers(spark, self.root / "in").select("id", F.col("dst").alias("account"), "amount")

        upsert = strobe.DeltaSink("balances", key="account")

        @pipeline.stage(uid="balances", reads="transfers", output_mode="update", to=upsert)
        def balances(transfers: DataFrame) -> DataFrame:
            return transfers.groupBy("account").agg(F.sum("amount").alias("balance"), F.count("id").alias("transfers"))

        return self.with_store(pipeline, interval=0.3, retained=1, tolerable_failures=100)

    def feed(self) -> None:
        write_transfers(self.root / "in", files=len(list((self.root / "in").glob("*.parquet"))) + 1, rows=ROWS)

    def live(self, spark: SparkSession, arm: Callable[[], Stand]) -> None:
        self.feed()
        job = self.start(spark)
        job.checkpoint()
        arm().feed_until_reached(self.feed)

    def check(self) -> None:
        totals = "select dst, sum(amount)::BIGINT, count(*) from '{}/*.parquet' group by 1 order by 1"
        with duckdb.connect() as db:
            expected = db.execute(totals.format(self.root / "in")).fetchall()
        found = "select account, balance::BIGINT, transfers from t order by 1"
        assert delta_rows(self.root / "balances", found) == expected


class Restored(Ledger):
    """A job that goes back to a snapshot, with another number of partitions."""

    points = tuple(p for p in POINTS if p.startswith("restore."))

    def live(self, spark: SparkSession, arm: Callable[[], Stand]) -> None:
        self.feed()
        self.to_the_end(spark)
        snapshot = self.newest()
        self.feed()
        arm()
        self.start(spark, snapshot=snapshot, partitions=3)


class Rescaled(Ledger):
    points = tuple(p for p in POINTS if p.startswith("rescale."))

    def live(self, spark: SparkSession, arm: Callable[[], Stand]) -> None:
        self.feed()
        self.to_the_end(spark)
        self.feed()
        arm()
        self.start(spark, partitions=3)


class Unchained(Ledger):
    """A job whose stages were one query, and are two from now on."""

    points = tuple(p for p in POINTS if p.startswith("unchain."))

    def live(self, spark: SparkSession, arm: Callable[[], Stand]) -> None:
        self.feed()
        self.chain = True
        self.to_the_end(spark)
        self.chain = False
        self.feed()
        arm()
        self.start(spark)


class Numbers(Play):
    """A sink that delivers on snapshot."""

    points = tuple(p for p in POINTS if p.startswith(("sink.", "commit.")))
    name = "numbers"
    retained: ClassVar[int] = 3
    interval: ClassVar[float] = 0.3

    def pipeline(self, *, bounded: bool) -> strobe.Pipeline:
        return numbers(
            self.root / "in", str(self.root / "out"), bounded=bounded, interval=self.interval, retained=self.retained,
            store=self.store,
        )  # fmt: skip

    def feed(self) -> None:
        add_file(self.root / "in", len(list((self.root / "in").glob("*.parquet"))))

    def live(self, spark: SparkSession, arm: Callable[[], Stand]) -> None:
        self.feed()
        job = self.start(spark)
        eventually(lambda: bool(visible(self.root / "out")), "the first part is visible", job)
        arm().feed_until_reached(self.feed)

    def check(self) -> None:
        files = len(list((self.root / "in").glob("*.parquet")))
        assert sorted(int(str(row["id"])) for row in visible(self.root / "out")) == list(range(files * NUMBERS))


class Settled(Numbers):
    """A restore finds a part in doubt, which its snapshot names."""

    points = ("settle.part-committed",)
    retained = 1000  # the job goes on taking checkpoints until it is stopped

    def live(self, spark: SparkSession, arm: Callable[[], Stand]) -> None:
        self.leave_doubt(spark)
        snapshot = self.newest()
        arm()
        self.start(spark, snapshot=snapshot)

    def leave_doubt(self, spark: SparkSession) -> SnapshotId:
        """The newest snapshot has a part that its sink did not commit; returns the one before it."""
        self.feed()
        job = self.start(spark)
        eventually(lambda: bool(visible(self.root / "out")), "the first part is visible", job)
        first = self.snapshots()[-1]
        down = self.root / "out/down"
        down.touch()
        self.feed()
        eventually(lambda: any(s.in_doubt for s in job.status().sinks), "a part waits", job)
        job.stop()
        down.unlink()
        return first


class Undone(Settled):
    """A restore finds a part in doubt, which its snapshot does not name."""

    points = ("settle.part-aborted",)

    def live(self, spark: SparkSession, arm: Callable[[], Stand]) -> None:
        first = self.leave_doubt(spark)
        arm()
        self.start(spark, snapshot=f"{self.name}/{first}")


class Held(Numbers):
    """A sink whose parts wait for what an invariant says."""

    points = ("verdict.noted",)
    interval = 2.0  # each one is judged, and it must not take longer than that

    def pipeline(self, *, bounded: bool) -> strobe.Pipeline:
        pipeline = super().pipeline(bounded=bounded)
        pipeline.invariant("nothing is wrong", sql=f"select 1 as wrong where {self.wrong}", on_violation="hold")
        return pipeline

    wrong: ClassVar[str] = "false"


class Windows(Play):
    """A job that is given orders, with windows that wait for event time."""

    points = tuple(p for p in POINTS if p.startswith("savepoint."))
    name = "windows"
    drains: ClassVar[bool] = False
    stops: ClassVar[bool] = False

    def pipeline(self, *, bounded: bool) -> strobe.Pipeline:
        pipeline = strobe.Pipeline("windows", chain=False)

        @pipeline.stage(uid="transfers")
        def transfers(spark: SparkSession) -> DataFrame:
            return read_transfers(spark, self.root / "in")

        @pipeline.stage(uid="seconds", reads="transfers", to=strobe.DeltaSink("out"))
        def seconds(transfers: DataFrame) -> DataFrame:
            timed = transfers.withWatermark("ts", "5 seconds")
            counted = timed.groupBy(F.window("ts", "10 seconds").alias("w")).agg(F.count("*").alias("rows"))
            return counted.select(F.col("w.start").alias("start"), "rows")

        return self.with_store(pipeline, interval=0.5, retained=1, tolerable_failures=1000)

    def feed(self) -> None:
        write_transfers(self.root / "in", files=len(list((self.root / "in").glob("*.parquet"))) + 1, rows=ROWS)

    def place(self, name: str) -> str:
        return f"{self.store}/{name}" if self.store else str(self.root / name)

    def live(self, spark: SparkSession, arm: Callable[[], Stand]) -> None:
        self.feed()
        job = self.start(spark)
        self.await_counted(job)
        arm()
        with contextlib.suppress(StrobeError):  # it stands in the midst of this, and is told that it is fenced off
            if self.stops:
                job.stop_with_savepoint(self.place("ordered"), drain=self.drains)
            else:
                job.savepoint(self.place("ordered"))

    def await_counted(self, job: strobe.Job) -> None:
        eventually(lambda: self.backlog(job) == 0, "the source has begun with its files", job)
        job.checkpoint()  # which falls after the batch that has them
        eventually(lambda: all(runner.agent.lag() == (0, 0) for runner in job.runners.values()), "all is read", job)

    def backlog(self, job: strobe.Job) -> int | None:
        (source,) = (s for s in job.status().stages if s.uid == "transfers")
        return None if source.backlog is None else source.backlog.files

    def to_the_end(self, spark: SparkSession, **options: Any) -> None:
        job = self.start(spark, **options)
        try:
            self.await_counted(job)
            job.stop_with_savepoint(self.place(f"last-{job.status().incarnation}"), drain=True)
        finally:
            job.stop()

    def check(self) -> None:
        assert windows_in(self.root / "out") == windows(self.root / "in")


class Stopped(Windows):
    points = ("stop.savepoint-complete",)
    stops = True


class Drained(Windows):
    points = tuple(p for p in POINTS if p.startswith("drain."))
    stops = drains = True


PLAYS: Final[Mapping[str, type[Play]]] = {
    point: play
    for play in (Ledger, Restored, Rescaled, Unchained, Numbers, Settled, Undone, Held, Windows, Stopped, Drained)
    for point in play.points
}
NOT_IN_A_BUCKET: Final[Mapping[str, str]] = {
    point: "a step of a write to a directory" for point in POINTS if point.startswith("store.file.")
}
LEFT_OUT: Final[Mapping[str, str]] = {
    "kafka.in-transaction": "the broker fences: tests/hosts/spark/connectors/kafka/test_kafka_job.py",
    "release.noted": "a person's order, which counts whoever notes it",
    "due.added": "in the log of a query, in a directory that no other driver uses",
}

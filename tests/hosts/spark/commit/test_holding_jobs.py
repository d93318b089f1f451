"""Jobs whose invariants hold rows back: the wrong total never becomes visible, until a person says so."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.cli.main import cli
from strobe.hosts.spark.job.job import Job, start_job
from strobe.hosts.spark.job.observer import Event, InvariantJudged, RowsReleased
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.model.errors import Misuse, StrobeError
from strobe.model.invariants import Outcome
from strobe.store.places import checkpoints_of
from strobe.store.releases import read_releases

pytestmark = pytest.mark.spark

TOTAL = (
    "select sum(x) as total from (select balance as x from state.balances union all select delta from "
    "in_flight.postings) having total <> 0"
)
ZERO = Decimal(0)
MAKES_MONEY = 13  # the id of a transfer that is booked twice


class Bank:
    """A ledger with a table and files. `add` brings transfers; `run` runs it until all of them are through."""

    def __init__(self, root: Path, spark: SparkSession) -> None:
        self.root, self.home, self.spark = root, root / "home", spark
        self.jobs: list[Job] = []
        (root / "in").mkdir()

    def pipeline(self, *, on_violation: str = "hold", sql: str = TOTAL, bounded: bool = True) -> strobe.Pipeline:
        pipeline = strobe.Pipeline("bank", checkpoint=strobe.CheckpointConfig(interval=0.2))
        files = strobe.FileSink(self.root / "postings", format="json", delivery="on_snapshot")
        table = strobe.DeltaSink(self.root / "balances", key="account", delivery="on_snapshot")

        @pipeline.stage(uid="transfers", trigger={"availableNow": True} if bounded else None)
        def transfers(spark: SparkSession) -> DataFrame:
            schema = "id BIGINT, src STRING, dst STRING, amount DECIMAL(18, 2)"
            return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(self.root / "in"))

        @pipeline.stage(uid="postings", reads="transfers", to=files)
        def postings(transfers: DataFrame) -> DataFrame:
            debit = transfers.select(F.col("src").alias("account"), (-F.col("amount")).alias("delta"))
            credit = transfers.select(F.col("dst").alias("account"), F.col("amount").alias("delta"))
            twice = transfers.filter(f"id = {MAKES_MONEY}").select(F.col("dst").alias("account"), "amount")
            return debit.union(credit).union(twice)

        @pipeline.stage(uid="balances", reads="postings", output_mode="update", to=table)
        def balances(postings: DataFrame) -> DataFrame:
            return postings.groupBy("account").agg(F.sum("delta").alias("balance"))

        pipeline.invariant("no money is made", sql=sql, on_violation=on_violation)
        return pipeline

    def add(self, *ids: int) -> None:
        rows = [{"id": i, "src": f"a{i % 3}", "dst": f"a{(i + 1) % 3}", "amount": f"{i}.50"} for i in ids]
        (self.root / "in" / f"{ids[0]}.json").write_text("\n".join(map(json.dumps, rows)))

    def start(self, *, snapshot: str | None = None, **how: Any) -> Job:
        job = start_job(
            self.pipeline(**how), home=str(self.home), spark=self.spark, restore=RestoreOptions(snapshot=snapshot)
        )
        self.jobs.append(job)
        return job

    def run(self, **how: Any) -> Job:
        job = self.start(**how)
        assert job.wait(300)
        return job

    def visible(self) -> tuple[int, Decimal, Decimal]:
        """How many postings, their sum, and the sum of the balances."""
        found = glob.glob(str(self.root / "postings" / "**" / "part-*.json"), recursive=True)
        rows = [json.loads(line) for file in found for line in Path(file).read_text().splitlines()]
        total = sum((Decimal(str(row["delta"])) for row in rows), Decimal(0))
        path = str(self.root / "balances")
        table = DeltaTable(path).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(path) else []
        return len(rows), total, sum((row["balance"] for row in table), Decimal(0))

    def say(self, *words: str) -> tuple[int, str]:
        """Exit code, and what was said, in one line."""
        done = CliRunner().invoke(cli, [*words, "--home", str(self.home)], standalone_mode=False)
        if isinstance(done.exception, StrobeError):
            return done.exception.exit_code, done.exception.what
        if done.exception is not None:
            raise done.exception
        return done.return_value or 0, " ".join(done.output.split())


def releases_told(job: Job) -> list[int]:
    told: list[Event] = []
    job.observer.subscribe(told.append)
    return [event.release.snapshot for event in told if isinstance(event, RowsReleased)]


@pytest.fixture
def bank(spark: SparkSession, tmp_path: Path) -> Iterator[Bank]:
    bank = Bank(tmp_path, spark)
    try:
        yield bank
    finally:
        for job in bank.jobs:
            job.stop()


def test_a_wrong_total_never_becomes_visible_until_it_is_released(bank: Bank) -> None:
    bank.add(1, 2, 3)
    assert bank.run().status().state == "finished"
    good = bank.visible()
    assert good == (6, ZERO, ZERO)

    bank.add(4, MAKES_MONEY)
    job = bank.run()
    status = job.status()
    assert status.state == "failed", "its rows are not where they should be"
    assert status.held is not None
    held = status.held.snapshot
    assert held is not None
    assert "total 13.50" in status.held.reason
    assert f"`strobe release bank {held}` lets it go" in status.error
    assert bank.visible() == good

    # Another run does not change that; what comes later is held, too, though nothing is wrong with it.
    bank.add(5)
    assert bank.run().status().state == "failed"
    assert bank.visible() == good
    code, said = bank.say("checks", "bank")
    assert (code, "Held:" in said, f"strobe run -s bank/{status.held.good}" in said) == (1, True, True)
    code, said = bank.say("status", "bank")
    assert "Held:" in said
    assert json.loads(bank.say("status", "bank", "--json")[1])["held"]["snapshot"] == held
    assert "held" in bank.say("transactions", "bank")[1]
    with pytest.raises(StrobeError, match="are held, or not judged yet"):
        bank.start(snapshot=f"bank/{held}")

    newest = max(checkpoints_of(bank.home, "bank").list())
    assert bank.say("release", "bank", "999")[0] == 2
    assert bank.say("release", "bonk", "1")[0] == 2
    assert bank.say("release", "bank", "soon")[0] == 2
    assert "Nothing is held up to snapshot 1" in bank.say("release", "bank", "1")[1]
    assert bank.visible() == good
    code, said = bank.say("release", "bank", str(newest))
    assert (code, "the next `strobe run` makes them visible" in said) == (0, True)
    assert [r.snapshot for r in read_releases(bank.home, "bank")] == [newest]
    assert bank.visible() == good
    assert releases_told(bank.run()) == [newest], "who watches the next run is told"
    assert bank.visible() == (13, Decimal("13.50"), Decimal("13.50"))
    assert "Nothing is held" in bank.say("release", "bank", str(newest))[1]


def test_going_back_to_the_last_good_snapshot_throws_away_what_is_held(bank: Bank) -> None:
    bank.add(1, 2, 3)
    bank.run()
    bank.add(4, MAKES_MONEY)
    held = bank.run().status().held
    assert held is not None
    (bank.root / "in" / "4.json").unlink()
    bank.add(4, 6)  # as it should have been
    job = bank.run(snapshot=f"bank/{held.good}")
    assert job.status().state == "finished"
    assert bank.visible() == (10, ZERO, ZERO)
    assert bank.say("checks", "bank")[0] == 0


def test_a_running_job_goes_on_while_rows_are_held_and_lets_them_go_when_told(bank: Bank) -> None:
    bank.add(1)
    job = bank.start(bounded=False, sql="select 1 as wrong")
    while (held := job.status().held) is None or held.snapshot is None:
        job.checkpoint()
    before = job.status().stages
    bank.add(2)
    while sum(s.batch for s in job.status().stages) <= sum(s.batch for s in before):
        job.checkpoint()
    assert bank.visible() == (0, ZERO, ZERO)
    held = job.status().held
    assert held is not None
    code, said = bank.say("release", "bank", f"bank/{held.snapshot}")
    assert (code, "are released" in said) == (0, True)
    assert releases_told(job) == [held.snapshot]
    job._commits.settle(60)
    assert bank.visible()[0] >= 2
    path = job.stop_with_savepoint(bank.root / "kept")
    assert Path(path).is_dir()


def test_a_query_that_fails_holds_and_a_mended_one_lets_go(bank: Bank) -> None:
    bank.add(1, 2)
    job = bank.run(sql="select cast(account as integer) from state.balances")
    assert job.status().state == "failed"
    assert "could not be evaluated" in job.status().error
    judged: list[Event] = []
    job.observer.subscribe(judged.append)
    assert [e.holds_back for e in judged if isinstance(e, InvariantJudged) and e.verdict.outcome is Outcome.FAILED]
    assert bank.run().status().state == "finished"
    assert bank.visible() == (4, ZERO, ZERO)


def test_hold_is_refused_where_it_could_not_work(tmp_path: Path) -> None:
    pipeline = strobe.Pipeline("plain")

    @pipeline.stage(uid="numbers", to=strobe.MemorySink("numbers"))
    def numbers(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("rate").load()

    with pytest.raises(Misuse, match="every=3 and on_violation='hold' do not go together"):
        pipeline.invariant("few", sql="select 1", every=3, on_violation="hold")
    pipeline.invariant("all", sql="select * from state.numbers", on_violation="hold")
    with pytest.raises(Misuse, match="no sink of pipeline 'plain' delivers on snapshot"):
        start_job(pipeline, home=str(tmp_path / "home"))
    assert not (tmp_path / "home").exists()

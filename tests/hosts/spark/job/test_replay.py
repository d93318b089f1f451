"""`strobe bisect --replay`: the batch at which an invariant broke, found in a fork that nobody else notices."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

import strobe
from strobe.hosts.spark.job import replaying
from strobe.hosts.spark.job.job import Job, start_job
from strobe.hosts.spark.job.replaying import Question, Replayed, ReplayedBatch, replay
from strobe.model.errors import Damaged, Failed, Misuse
from strobe.model.invariants import Invariant, Outcome, Verdict
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JobLayout
from strobe.store.signing import SIGNED_BY, signer
from strobe.store.snapshots import SnapshotStore
from tests.store.snapshot_samples import JOB, take
from tests.support.keys import key_pair
from tests.support.spark.jobs import all_read, eventually

NEVER_NEGATIVE = Invariant("never below zero", "select account, balance from state.balances where balance < 0")


def bank(tmp_path: Path, bonus: int = 0, **source: Any) -> strobe.Pipeline:
    """Two postings for each transfer, and a balance for each account: three stages, one of them with state. Aligned:
    nothing is in flight where a replay begins."""
    config = strobe.CheckpointConfig(interval=None, retained=10, mode="aligned")
    pipeline = strobe.Pipeline("bank", checkpoint=config, partitions=1, chain=False)

    @pipeline.stage(uid="transfers")
    def transfers(spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema("id BIGINT, payer STRING, payee STRING, cents BIGINT")
        return reader.options(**source).json(str(tmp_path / "in"))

    @pipeline.stage(uid="postings", reads="transfers")
    def postings(transfers: DataFrame) -> DataFrame:
        sides = F.array(
            F.struct(F.col("payer").alias("account"), (F.lit(bonus) - F.col("cents")).alias("delta")),
            F.struct(F.col("payee").alias("account"), F.col("cents").alias("delta")),
        )
        return transfers.select(F.explode(sides).alias("p")).select("p.*")

    @pipeline.stage(uid="balances", reads="postings", output_mode="update", to=strobe.DeltaSink("out/balances"))
    def balances(postings: DataFrame) -> DataFrame:
        return postings.groupBy("account").agg(F.sum("delta").alias("balance"))

    return pipeline


def put(tmp_path: Path, number: int, *transfers: tuple[str, str, int]) -> None:
    """A file with transfers, whole at once."""
    (tmp_path / "in").mkdir(exist_ok=True)
    fresh = tmp_path / f".{number}"
    rows = ({"id": number, "payer": a, "payee": b, "cents": cents} for a, b, cents in transfers)
    fresh.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fresh.rename(tmp_path / "in" / f"{number:03d}.json")


def content(*roots: Path) -> dict[str, str]:
    """Every file below them, by what is in it; leases come and go."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for root in roots
        for path in sorted(root.rglob("*"))
        if path.is_file() and "leases" not in path.parts
    }


@pytest.fixture
def broken(spark: SparkSession, tmp_path: Path) -> Path:
    """A job with two checkpoints. Between them it read four files, each in a batch of its own: with the third of them
    the account `poor` falls below zero."""
    pipeline = bank(tmp_path)
    put(tmp_path, 0, ("rich", "rich", 0), ("vault", "vault", 0))
    job = start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    try:
        eventually(lambda: all_read(job, 1), "the first file is read", job)
        job.checkpoint()
        files = ([("rich", "rich", 5)], [("a", "a", 1)], [("poor", "rich", 7), ("rich", "rich", 1)], [("b", "b", 2)])
        for number, transfers in enumerate(files, 1):
            put(tmp_path, number, *transfers)
            eventually(lambda: all_read(job, number + 1), "a file is read", job)  # noqa: B023
        job.checkpoint()
    finally:
        job.stop()
        job.wait()
    return tmp_path


def replayed(spark: SparkSession, at: Path, invariant: Invariant = NEVER_NEGATIVE, **options: Any) -> Replayed:
    upto = {uid: n.batch for uid, n in _manifest(at).nodes.items() if n.batch is not None}
    pipeline = options.pop("pipeline", None) or bank(at)
    return replay(pipeline, "bank/1", Question(invariant), home=at / "home", upto=upto, spark=spark, **options)


def _manifest(at: Path) -> Any:
    from strobe.store.locate import locate

    return locate("bank/2", at / "home").load()


def test_the_batch_that_breaks_it_is_found_with_its_rows_and_nobody_notices(spark: SparkSession, broken: Path) -> None:
    before = content(broken)
    told: list[tuple[ReplayedBatch, Verdict]] = []
    found = replayed(spark, broken, told=lambda batch, verdict: told.append((batch, verdict)))
    assert found.culprit is not None
    assert found.culprit.stage == "balances"
    assert found.verdict.rows == ({"account": "poor", "balance": -7},)
    # One batch at a time, down to the last stage before the next one of the source, as the job itself had read them.
    assert [str(b.stage) for b, _ in told] == ["transfers", "postings", "balances"] * 3
    assert [b.batch for b, _ in told if b.stage == "transfers"] == [1, 2, 3]
    assert [v.outcome for _, v in told] == [Outcome.HOLDS] * 8 + [Outcome.VIOLATED]
    assert all(b.from_job for b, _ in told if b.stage == "transfers")
    # The rows, stage by stage, from the source down.
    assert [str(batch.stage) for batch, _ in found.inputs] == ["transfers", "postings", "balances"]
    source, postings, balances = (inputs for _, inputs in found.inputs)
    assert [(row["payer"], row["cents"]) for row in source[0].rows.to_pylist()] == [("poor", 7), ("rich", 1)]
    assert (postings[0].name, postings[0].count) == ("transfers", 2)
    assert {(r["account"], r["delta"]) for r in balances[0].rows.to_pylist()} >= {("poor", -7), ("rich", 7)}
    assert balances[0].count == 4
    assert content(broken) == before  # neither the job nor its sink, and nothing is left behind
    # It goes by what the job wrote, not by the file: with one that is mended nothing breaks, to the end of what the
    # bad checkpoint had read.
    mended = bank(broken, bonus=100)
    calm = replayed(spark, broken, pipeline=mended)
    assert (calm.culprit, calm.verdict.outcome, calm.batches) == (None, Outcome.HOLDS, 4 * 3)
    # An invariant that cannot be asked in a fork, and a source that cannot be read again.
    with pytest.raises(Failed, match="Sinks discard in a fork"):
        replayed(spark, broken, Invariant("sink", "select * from sink.balances where balance < 0"))
    with pytest.raises(Misuse, match="reads files with cleanSource=delete"):
        replayed(spark, broken, pipeline=bank(broken, cleanSource="delete"))
    assert content(broken) == before


def test_without_the_job_s_own_notes_batches_are_what_spark_takes_and_the_fork_can_be_kept(
    spark: SparkSession, broken: Path
) -> None:
    """As when Spark has forgotten them: it keeps the last hundred."""
    (log,) = (broken / "home").glob("jobs/bank/**/transfers/**/offsets")
    (log / "0").unlink()
    found = replayed(spark, broken, pipeline=bank(broken, maxFilesPerTrigger=3), keep=True, rows=1)
    assert found.culprit is not None
    assert (found.culprit.stage, found.batches) == ("balances", 3)
    assert not any(batch.from_job for batch, _ in found.inputs)
    (source,) = found.inputs[0][1]
    assert (source.count, source.rows.num_rows) == (4, 1)  # three files, and the first row of them
    assert found.home is not None
    with strobe.open_snapshot("bank", found.home) as kept:
        assert {"account": "poor", "balance": -7} in kept.state("balances").select(["account", "balance"]).to_pylist()


class Reached(Exception):
    """The fork would be made now."""


def test_a_replay_takes_what_the_policy_takes_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can write into the store can put a snapshot there, and a fork of it runs on its rows."""
    (private, public), (_, other) = key_pair(tmp_path, "mine"), key_pair(tmp_path, "other")
    home = tmp_path / "home"
    take(SnapshotStore(FilesystemStore(home), JobLayout(JOB), JOB), 1, {"a": b"x"})
    take(SnapshotStore(FilesystemStore(home), JobLayout(JOB), JOB, sign=signer(private)), 2, {"a": b"y"})
    before = content(home)

    def reached(*_: Any) -> Any:
        raise Reached

    def asked(number: int, **policy: Any) -> Replayed:
        question = Question(NEVER_NEGATIVE)
        return replay(strobe.Pipeline(JOB), f"{JOB}/{number}", question, home=home, upto={}, **policy)

    monkeypatch.setattr(replaying, "in_session", reached)
    with pytest.raises(Reached):
        asked(1)
    with pytest.raises(Damaged, match="it is not signed"):
        asked(1, signed_by=public)
    with pytest.raises(Damaged, match="its signature is not by"):
        asked(2, signed_by=other)
    with pytest.raises(Reached):
        asked(2, signed_by=public)
    monkeypatch.setenv(SIGNED_BY, public)
    with pytest.raises(Damaged, match="it is not signed"):
        asked(1)
    with pytest.raises(Reached):
        asked(2)
    assert content(home) == before


class Views(DataSource):
    """A user's own source: a line of a file is a row, the number of lines is the offset."""

    @classmethod
    def name(cls) -> str:
        return "views_by_line"

    def schema(self) -> str:
        return "id BIGINT, seen TIMESTAMP"

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return ViewsReader(str(self.options["path"]))


class ViewsReader(SimpleDataSourceStreamReader):
    def __init__(self, path: str) -> None:
        self.path = path

    def _rows(self, first: int, end: int) -> Any:
        lines = Path(self.path).read_text().splitlines()[first:end]
        return iter([(int(line), datetime(2031, 5, 17, 9, int(line))) for line in lines])

    def initialOffset(self) -> dict[str, int]:
        return {"line": 0}

    def read(self, start: Any) -> Any:
        end = len(Path(self.path).read_text().splitlines())
        return self._rows(start["line"], end), {"line": end}

    def readBetweenOffsets(self, start: Any, end: Any) -> Any:
        return self._rows(start["line"], end["line"])


def pairing(tmp_path: Path) -> strobe.Pipeline:
    """Clicks from files, views from a user's source, their pairs, and totals with bonuses from files beside."""
    config = strobe.CheckpointConfig(interval=None, retained=10)
    pipeline = strobe.Pipeline("pairs", checkpoint=config, partitions=1, chain=False)

    @pipeline.stage(uid="clicks")
    def clicks(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("click BIGINT, user STRING, cents BIGINT, at TIMESTAMP").json(
            str(tmp_path / "clicks")
        )

    @pipeline.stage(uid="views")
    def views(spark: SparkSession) -> DataFrame:
        spark.dataSource.register(Views)
        return spark.readStream.format("views_by_line").option("path", str(tmp_path / "views")).load()

    @pipeline.stage(uid="pairs", reads=["clicks", "views"])
    def pairs(clicks: DataFrame, views: DataFrame) -> DataFrame:
        near = F.expr("click = id AND at BETWEEN seen AND seen + INTERVAL 5 MINUTES")
        joined = clicks.withWatermark("at", "1 hour").join(views.withWatermark("seen", "1 hour"), near)
        return joined.select("user", "cents")

    @pipeline.stage(uid="totals", reads="pairs", output_mode="update", to=strobe.DeltaSink("out/totals", key="user"))
    def totals(spark: SparkSession, pairs: DataFrame) -> DataFrame:
        bonus = spark.readStream.schema("user STRING, cents BIGINT").json(str(tmp_path / "bonus"))
        return pairs.union(bonus).groupBy("user").agg(F.sum("cents").alias("total"))

    return pipeline


def test_a_join_of_a_user_s_source_and_a_stage_with_a_source_beside_are_replayed(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "clicks").mkdir()
    (tmp_path / "bonus").mkdir()
    (tmp_path / "views").write_text("")

    def click(number: int, user: str, cents: int) -> None:
        row = {"click": number, "user": user, "cents": cents, "at": f"2031-05-17T09:{number:02d}:30Z"}
        (tmp_path / f".{number}").write_text(json.dumps(row))
        (tmp_path / f".{number}").rename(tmp_path / "clicks" / f"{number}.json")
        with (tmp_path / "views").open("a") as views:
            views.write(f"{number}\n")

    def taken(job: Job, rows: int) -> bool:
        return next(s.rows_in_total for s in job.status().stages if s.uid == "totals") >= rows

    job = start_job(pairing(tmp_path), home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    try:
        click(1, "ada", 10)
        eventually(lambda: taken(job, 1), "the first pair", job)
        good = job.checkpoint()
        (tmp_path / "bonus" / "1.json").write_text(json.dumps({"user": "cat", "cents": 5}))
        eventually(lambda: taken(job, 2), "a bonus", job)
        for number, (user, cents) in enumerate((("ben", 20), ("ben", 5000)), 2):
            click(number, user, cents)
            eventually(lambda: taken(job, number + 1), "a pair", job)  # noqa: B023
        bad = job.store.load(job.checkpoint())
    finally:
        job.stop()
        job.wait()
    rich = Invariant("nobody is rich", "select user, total from state.totals where total > 1000")
    upto = {uid: node.batch for uid, node in bad.nodes.items() if node.batch is not None}
    found = replay(pairing(tmp_path), f"pairs/{good}", Question(rich), home=tmp_path / "home", upto=upto, spark=spark)
    assert found.culprit is not None
    assert found.culprit.stage == "totals"
    assert found.verdict.rows == ({"user": "ben", "total": 5020},)
    # Whichever side came last has made the pair; the other one was in the join's state by then.
    assert [str(batch.stage) for batch, _ in found.inputs] in (
        ["clicks", "pairs", "totals"],
        ["views", "pairs", "totals"],
    )
    (last,) = (inputs for batch, inputs in found.inputs if batch is found.culprit)
    assert [row for each in last for row in each.rows.to_pylist()] == [{"user": "ben", "cents": 5000}]

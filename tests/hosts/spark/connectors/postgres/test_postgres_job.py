"""Whole jobs from Postgres to Postgres: what is visible when, and what kills of driver and server leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import strobe
from strobe.hosts.spark.commit.ledger import read_ledgers
from strobe.hosts.spark.connectors.base import Part
from strobe.hosts.spark.job.job import start_job
from strobe.model.cut import Json
from strobe.model.errors import Failed
from strobe.model.ids import NodeId
from tests.services import Server
from tests.support.spark.jobs import eventually, finish, run_to_the_end, stage
from tests.support.spark.postgres_world import Database, add_numbers, delivered, numbers, set_up_numbers

pytestmark = [pytest.mark.spark, pytest.mark.services("postgres")]

ROOT = Path(__file__).parents[5]
PIPELINE = Path(__file__).parents[4] / "support" / "spark" / "pipelines" / "postgres_job.py"


@pytest.fixture
def database(postgres: str) -> Iterator[Database]:
    found = Database(postgres)
    yield found
    found.drop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """One that may be killed."""
    with Server("postgres", tmp_path) as server:
        yield server


def start(pipeline: strobe.Pipeline, tmp_path: Path, spark: SparkSession) -> strobe.Job:
    return start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)


def await_rows(job: strobe.Job, rows: int) -> None:
    """Until so many rows have come through, and the sink's stage rests."""
    source, gold = (job.runners[NodeId(uid)] for uid in ("source", "gold"))
    eventually(lambda: source.rows_out >= rows and gold.agent.idle, f"{rows} rows", job)


def test_rows_become_visible_with_the_checkpoint_that_contains_them(
    tmp_path: Path, spark: SparkSession, database: Database
) -> None:
    set_up_numbers(database, 7)
    job = start(numbers(database.dsn, bounded=False), tmp_path, spark)
    await_rows(job, 7)
    assert delivered(database) == []
    job.checkpoint()
    eventually(lambda: delivered(database) == list(range(1, 8)), "the first part", job)
    add_numbers(database, 3)
    await_rows(job, 10)
    assert delivered(database) == list(range(1, 8))
    job.checkpoint()
    eventually(lambda: delivered(database) == list(range(1, 11)), "the second part", job)
    job.cancel()
    assert database.prepared() == []


def test_a_violated_constraint_fails_the_snapshot_with_the_row_and_nothing_is_visible(
    tmp_path: Path, spark: SparkSession, database: Database
) -> None:
    set_up_numbers(database, 4, "id bigint UNIQUE, twice bigint")
    database.run("INSERT INTO target VALUES (3, 6)")
    job = start(numbers(database.dsn, bounded=False, tolerable_failures=3), tmp_path, spark)
    await_rows(job, 4)
    with pytest.raises(Failed, match=r"target_id_key.*Key \(id\)=\(3\) already exists"):
        job.checkpoint()
    assert (delivered(database), database.prepared()) == ([3], [])
    database.run("DELETE FROM target")
    job.checkpoint()
    eventually(lambda: delivered(database) == [1, 2, 3, 4], "the rows", job)
    job.cancel()


def test_with_dead_letters_only_the_row_that_cannot_be_written_is_missing(
    tmp_path: Path, spark: SparkSession, database: Database
) -> None:
    set_up_numbers(database, 6, "id bigint CHECK (id <> 4), twice bigint")
    sink = strobe.PostgresSink(database.dsn, "target", delivery="on_snapshot", dead_letters=strobe.DeadLetters("dead"))
    finish(start(numbers(database.dsn, sink=sink), tmp_path, spark))
    assert delivered(database) == [1, 2, 3, 5, 6]
    letters = spark.read.parquet(*(str(f) for f in (tmp_path / "dead").glob("*.parquet"))).collect()
    assert [letter["row"] for letter in letters] == ['{"id": 4, "twice": 8}']
    assert "target_id_check" in letters[0]["reason"]


def test_the_password_is_written_nowhere(tmp_path: Path, spark: SparkSession, database: Database) -> None:
    set_up_numbers(database, 2)
    job = start(numbers(database.dsn), tmp_path, spark)
    finish(job)
    password = database.dsn.split(":")[2].partition("@")[0]
    told = f"{job.status()} {strobe.PostgresSink(database.dsn, 'target')!r}"
    files = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert password not in told
    assert [path for path in files if password.encode() in path.read_bytes()] == []


class ServerDies(strobe.PostgresSink):
    """Kills Postgres when a part is to be committed for the first time."""

    def __init__(self, server: Server, dsn: str) -> None:
        super().__init__(dsn, "target", delivery="on_snapshot")
        self.server, self.killed = server, False

    def commit(self, part: Part, prepared: Json) -> None:
        if not self.killed:
            self.server.kill()
            self.killed = True
        super().commit(part, prepared)


def test_postgres_killed_between_prepare_and_commit_comes_back_and_has_every_row_once(
    tmp_path: Path, spark: SparkSession, server: Server
) -> None:
    database = Database(server.address)
    set_up_numbers(database, 7)
    job = start(numbers(database.dsn, bounded=False, sink=ServerDies(server, database.dsn)), tmp_path, spark)
    await_rows(job, 7)
    first = job.checkpoint()
    eventually(lambda: job.status().sinks[0].failures > 0, "an attempt to commit", job)
    assert "does not answer" in job.status().sinks[0].error
    server.start()
    eventually(lambda: delivered(database) == list(range(1, 8)), "the rows", job)
    eventually(lambda: not read_ledgers(tmp_path / "home", "numbers")["gold/0"].entries, "the end of doubt", job)
    assert (database.prepared(), job.store.list()) == ([], (first,))
    add_numbers(database, 2)
    await_rows(job, 9)  # the source has come back, too
    job.checkpoint()
    all_of_them = [id for (id,) in database.rows("SELECT id FROM numbers ORDER BY id")]  # a crash leaves out numbers
    eventually(lambda: delivered(database) == all_of_them, "the rows after it", job)
    job.cancel()


def test_while_postgres_is_away_a_sink_on_batch_tries_again_and_says_so(
    tmp_path: Path, spark: SparkSession, database: Database, server: Server
) -> None:
    set_up_numbers(database, 3)
    away = Database(server.address)
    set_up_numbers(away, 0)
    sink = strobe.PostgresSink(away.dsn, "target")
    job = start(numbers(database.dsn, bounded=False, sink=sink), tmp_path, spark)
    eventually(lambda: delivered(away) == [1, 2, 3], "the first rows", job)
    server.kill()
    add_numbers(database, 4)
    eventually(lambda: sink.failures > 1, "attempts", job)
    assert "cannot be written to now" in stage(job, "gold").error or "does not answer" in stage(job, "gold").error
    assert stage(job, "gold").restarts == 0
    server.start()
    eventually(lambda: delivered(away) == list(range(1, 8)), "the rest", job)
    eventually(lambda: stage(job, "gold").error == "", "its recovery", job)
    job.cancel()


@pytest.mark.slow
def test_a_source_whose_postgres_is_away_is_tried_for_as_long_as_it_takes_and_says_so(
    tmp_path: Path, spark: SparkSession, database: Database, server: Server
) -> None:
    away = Database(server.address)
    set_up_numbers(away, 3)
    set_up_numbers(database, 0)
    sink = strobe.PostgresSink(database.dsn, "target")
    job = start(numbers(away.dsn, bounded=False, sink=sink, attempts=1), tmp_path, spark)
    eventually(lambda: delivered(database) == [1, 2, 3], "the first rows", job)
    server.kill()
    eventually(lambda: stage(job, "source").restarts > 2, "more restarts than there are attempts", job)
    assert "does not answer" in stage(job, "source").error
    assert job.state is strobe.JobState.RUNNING
    server.start()
    eventually(lambda: stage(job, "source").error == "", "it is well before there is anything to read", job)
    add_numbers(away, 4)
    ids = [n for (n,) in away.rows("SELECT id FROM numbers ORDER BY id")]  # a server that was killed skips some
    assert len(ids) == 7
    eventually(lambda: delivered(database) == ids, "the rest", job)
    job.cancel()


def strobe_run(tmp_path: Path, database: Database, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "strobe.cli.main", "run", str(PIPELINE), "--home", str(tmp_path / "home")],
        env={**os.environ, "NUMBERS_DSN": database.dsn, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


@pytest.mark.slow
def test_a_driver_killed_around_its_commit_leaves_work_in_doubt_that_the_next_one_finishes(
    tmp_path: Path, database: Database
) -> None:
    set_up_numbers(database, 6)
    killed = strobe_run(tmp_path, database, STROBE_CRASH_AT="commit.begun")
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    assert delivered(database) == []
    (gid,) = database.prepared()
    assert "/numbers/gold/0/1/" in gid
    add_numbers(database, 4)
    killed = strobe_run(tmp_path, database, STROBE_CRASH_AT="sink.part-prepared:2")
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    seen = delivered(database)
    assert seen == list(range(1, len(seen) + 1))
    ended = strobe_run(tmp_path, database, BOUNDED="1")
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert (delivered(database), database.prepared()) == (list(range(1, 11)), [])


@pytest.mark.slow
def test_a_table_gets_its_column_although_a_killed_driver_has_left_a_prepared_transaction_on_it(
    tmp_path: Path, database: Database
) -> None:
    set_up_numbers(database, 1)
    ended = strobe_run(tmp_path, database, BOUNDED="1", SCHEMA="evolve")  # from here on each part has rows
    assert ended.returncode == 0, ended.stderr[-2000:]
    add_numbers(database, 5)
    killed = strobe_run(tmp_path, database, STROBE_CRASH_AT="commit.begun", SCHEMA="evolve")
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    assert (delivered(database), len(database.prepared())) == ([1], 1)
    add_numbers(database, 4)
    ended = strobe_run(tmp_path, database, BOUNDED="1", SCHEMA="evolve", EVOLVED="1")
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert (delivered(database), database.prepared()) == (list(range(1, 11)), [])
    old = [id for (id,) in database.rows("SELECT id FROM target WHERE thrice IS NULL ORDER BY id")]
    assert old == list(range(1, len(old) + 1))
    assert 1 < len(old) < 10, "what the killed driver had written has no such column, what came later has"
    assert database.rows("SELECT count(*) FROM target WHERE thrice <> 3 * id") == [(0,)]


def test_a_restore_across_the_change_gives_rows_that_come_again_the_new_column(
    tmp_path: Path, spark: SparkSession, database: Database
) -> None:
    set_up_numbers(database, 7)
    sink = strobe.PostgresSink(database.dsn, "target", delivery="on_snapshot", schema="evolve")
    job = start(numbers(database.dsn, bounded=False, sink=sink), tmp_path, spark)
    await_rows(job, 7)
    snapshot = job.checkpoint()
    eventually(lambda: delivered(database) == list(range(1, 8)), "the first part", job)
    add_numbers(database, 3)
    await_rows(job, 10)
    job.cancel()
    again = strobe.PostgresSink(database.dsn, "target", delivery="on_snapshot", schema="evolve")
    changed = numbers(database.dsn, sink=again, evolved=True)
    run_to_the_end(changed, tmp_path / "home", spark, snapshot=f"numbers/{snapshot}")
    assert delivered(database) == list(range(1, 11))
    thrice = database.rows("SELECT id, thrice FROM target ORDER BY id")
    assert thrice == [*((id, None) for id in range(1, 8)), *((id, 3 * id) for id in range(8, 11))]

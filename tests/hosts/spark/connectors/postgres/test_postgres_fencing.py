"""A driver that was given up, and what it may still do to a prepared transaction. No Spark is needed for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from strobe.hosts.spark.connectors.base import Part
from strobe.hosts.spark.connectors.postgres.connect import Dsn
from strobe.hosts.spark.connectors.postgres.marks import Marks, owner_of
from strobe.model.errors import Fenced
from strobe.model.ids import SnapshotId, Timeline
from tests.support.spark.postgres_world import Database, context_of

pytestmark = pytest.mark.services("postgres")
SCHEMA = StructType([StructField("k", LongType())])
PART = Part("h", SnapshotId(7), Timeline(1), -1, 3)


@pytest.fixture
def database(postgres: str) -> Iterator[Database]:
    found = Database(postgres)
    found.run("CREATE TABLE target (k bigint)")
    yield found
    found.drop()


def driver(database: Database, home: Path, incarnation: int) -> Marks:
    """A driver that has opened the sink."""
    context = context_of(home, SCHEMA, incarnation=incarnation)
    marks = Marks(Dsn(database.dsn), "public", "target", context, owner_of(context, "sink"))
    with marks.dsn.session("sink", marks.application) as connection:
        marks.set_up(connection)
    return marks


def prepare(database: Database, marks: Marks) -> str:
    gid = marks.gid(PART, -1)
    database.run(f"BEGIN; INSERT INTO target VALUES (1); PREPARE TRANSACTION '{gid}'")
    return gid


def test_a_driver_that_was_given_up_does_not_commit_what_it_had_prepared(database: Database, tmp_path: Path) -> None:
    old = driver(database, tmp_path, 1)
    gid = prepare(database, old)
    driver(database, tmp_path, 2)  # it has not aborted anything yet
    with old.dsn.session("sink", old.application) as connection, pytest.raises(Fenced):
        old.commit(connection, gid)
    assert database.prepared() == [gid]
    assert database.rows("SELECT k FROM target") == []


def test_the_newest_driver_commits_what_an_older_one_had_prepared(database: Database, tmp_path: Path) -> None:
    gid = prepare(database, driver(database, tmp_path, 1))
    new = driver(database, tmp_path, 2)
    with new.dsn.session("sink", new.application) as connection:
        assert new.commit(connection, gid)
        assert not new.commit(connection, gid)
    assert database.rows("SELECT k FROM target") == [(1,)]


def test_a_driver_that_sleeps_while_it_commits_is_sent_away_by_the_next_one(database: Database, tmp_path: Path) -> None:
    old = driver(database, tmp_path, 1)
    gid = prepare(database, old)
    with old.dsn.session("sink", old.application) as connection, old._alone(connection):
        new = driver(database, tmp_path, 2)
    with new.dsn.session("sink", new.application) as connection:
        assert new.commit(connection, gid)

"""Staged batches: whole or not there, replaceable, in order."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strobe.hosts.spark.connectors import staging as module
from strobe.hosts.spark.connectors.base import Part, SinkContext
from strobe.hosts.spark.connectors.staging import Staging
from strobe.model.errors import Damaged, Fenced
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline

pytestmark = pytest.mark.spark


def context(tmp_path: Path, spark: SparkSession, incarnation: int = 1) -> SinkContext:
    return SinkContext(
        job="job", stage=NodeId("gold"), name="gold/0", timeline=Timeline(1), incarnation=Incarnation(incarnation),
        schema=spark.range(0).schema, output_mode="append", base=tmp_path, staging=tmp_path / "staging",
    )  # fmt: skip


def part(after: int, through: int) -> Part:
    return Part("job/gold/0/1/7", SnapshotId(7), Timeline(1), after, through)


def ids(staging: Staging, spark: SparkSession, of: Part) -> list[int]:
    return [row.id for file in staging.files(of) for row in spark.read.parquet(str(file)).collect()]


def test_a_part_gives_its_batches_in_order_and_no_others(spark: SparkSession, tmp_path: Path) -> None:
    staging = Staging(context(tmp_path, spark))
    for batch in range(4):
        staging.write(spark.range(batch * 10, batch * 10 + 4, 1, 2), batch)
    assert ids(staging, spark, part(0, 2)) == [10, 11, 12, 13, 20, 21, 22, 23]
    assert sorted(r.id for r in staging.frame(spark, part(2, 3)).collect()) == [30, 31, 32, 33]
    assert staging.rows(part(-1, 3)) == 16
    assert staging.last_batch() == 3


def test_a_batch_that_is_written_again_replaces_itself(spark: SparkSession, tmp_path: Path) -> None:
    staging = Staging(context(tmp_path, spark))
    staging.write(spark.range(3), 0)
    staging.write(spark.range(5, 6), 0)
    assert ids(staging, spark, part(-1, 0)) == [5]


def test_a_driver_that_was_given_up_stages_nothing_more(spark: SparkSession, tmp_path: Path) -> None:
    old = Staging(context(tmp_path, spark, 1))
    old.write(spark.range(2), 0)
    new = Staging(context(tmp_path, spark, 2))
    with pytest.raises(Fenced, match="Incarnation 1 is fenced off"):
        old.write(spark.range(3), 1)
    assert new.last_batch() == 0
    assert ids(new, spark, part(-1, 0)) == [0, 1]


def test_what_the_newest_driver_staged_counts(spark: SparkSession, tmp_path: Path) -> None:
    Staging(context(tmp_path, spark, 9)).write(spark.range(3), 0)
    Staging(context(tmp_path, spark, 10)).write(spark.range(7, 8), 0)
    newest = Staging(context(tmp_path, spark, 11))
    assert ids(newest, spark, part(-1, 0)) == [7]


def test_a_crash_halfway_through_a_write_leaves_no_half_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = Staging(context(tmp_path, spark))
    staging.write(spark.range(3), 0)
    with monkeypatch.context() as patch:

        class Killed(BaseException):
            pass

        def die(directory: Path) -> None:
            raise Killed

        patch.setattr(module, "_tidy", die)
        patch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)  # a killed process tidies nothing
        with pytest.raises(Killed):
            staging.write(spark.range(9), 1)
    assert any(p.name.startswith("tmp-") for p in staging.directory.iterdir())
    assert staging.last_batch() == 0
    again = Staging(context(tmp_path, spark, 2))
    assert again.last_batch() == 0
    assert not any(p.name.startswith("tmp-") for p in again.directory.iterdir())


def test_a_batch_without_rows_is_staged_and_has_no_files(spark: SparkSession, tmp_path: Path) -> None:
    staging = Staging(context(tmp_path, spark))
    staging.write(spark.range(0), 0)
    staging.write(spark.range(1).where("id > 5"), 1)
    assert staging.files(part(-1, 1)) == []
    assert staging.rows(part(-1, 1)) == 0
    frame = staging.frame(spark, part(-1, 1))
    assert frame.columns == ["id"]
    assert frame.count() == 0


def test_what_is_forgotten_is_gone_and_the_rest_stays(spark: SparkSession, tmp_path: Path) -> None:
    staging = Staging(context(tmp_path, spark))
    for batch in range(3):
        staging.write(spark.range(1), batch)
    staging.forget(part(-1, 1))
    staging.forget(part(-1, 1))
    assert staging.missing(part(-1, 2)) == [0, 1]
    assert len(staging.files(part(1, 2))) == 1


def test_a_missing_batch_is_damage_and_named(spark: SparkSession, tmp_path: Path) -> None:
    staging = Staging(context(tmp_path, spark))
    staging.write(spark.range(1), 0)
    with pytest.raises(Damaged, match="Batch 1 of job/gold/0/1/7"):
        staging.files(part(-1, 1))


def test_who_only_looks_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    assert Staging(context(tmp_path, spark, 1), sweep=False).last_batch() is None
    assert not (tmp_path / "staging").exists()
    running = Staging(context(tmp_path, spark, 1))
    running.write(spark.range(1), 0)
    assert Staging(context(tmp_path, spark, 2), sweep=False).last_batch() == 0
    running.write(spark.range(1), 1)
    assert running.last_batch() == 1


def test_files_of_a_sinks_own_are_not_taken_for_batches(spark: SparkSession, tmp_path: Path) -> None:
    where = context(tmp_path, spark)
    where.staging.mkdir()
    (where.staging / "00000001").write_text("a batch, as this sink keeps it")
    assert Staging(where, sweep=False).missing(part(-1, 1)) == [0, 1]
    assert Staging(where, sweep=False).last_batch() is None

"""What Spark leaves behind when it is killed is swept before it starts again, and nothing else is."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.checkpoint.leftovers import sweep
from strobe.hosts.spark.checkpoint.stage_files import stage_checkpoint
from strobe.hosts.spark.job.job import start_job
from strobe.model.errors import Damaged
from strobe.model.ids import NodeId
from tests.support.spark.jobs import finish
from tests.support.spark.ledger_data import delta_rows

LONG_AGO = (1, 1)


def leave(path: Path, text: str = "", *, old: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if old:
        os.utime(path, LONG_AGO)
    return path


def unfinished(directory: Path, name: str, task: str = "", *, old: bool = True) -> list[Path]:
    """A file that Spark was writing, and the checksum of what it had written."""
    path = directory / f".{name}.{uuid.uuid4()}{task}.tmp"
    return [leave(path, old=old), leave(path.with_name(f".{path.name}.crc"), old=old)]


def everywhere(checkpoint: Path) -> list[Path]:
    """One of each place where Spark writes."""
    places = [
        (".", "metadata", ""), ("offsets", "7", ""), ("commits", "7", ""), ("sources/0", "12", ""),
        ("sources/1", "9.compact", ""), ("state/0/0", "8.changelog", ".TID62"), ("state/0/1", "8.zip", ""),
        ("state/0/0/left-keyToNumValues", "8.delta", ""), ("state/0/_metadata", "metadata", ""),
        ("state/0/_metadata/v2", "7", ""), ("state/0/_stateSchema/default", f"7_{uuid.uuid4()}", ""),
    ]  # fmt: skip
    return [path for where, name, task in places for path in unfinished(checkpoint / where, name, task)]


def checkpoint_with_batches(checkpoint: Path) -> list[Path]:
    """Files that count, under every kind of name."""
    names = [
        "metadata", "offsets/6", "offsets/7", "commits/6", "sources/0/11", "sources/0/12", "sources/1/9.compact",
        "state/0/_metadata/metadata", "state/0/_metadata/v2/7", "state/0/_stateSchema/default/0_a-b", "state/0/0/7.zip",
        "state/0/0/8.changelog", "state/0/0/SSTs/000008-x.sst", "state/0/0/_metadata/schema", "offsets/.7.crc",
    ]  # fmt: skip
    return [leave(checkpoint / name, "counts") for name in names]


def files(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_file()}


def test_unfinished_files_and_checksums_of_nothing_go_and_all_others_stay(tmp_path: Path) -> None:
    counts = checkpoint_with_batches(tmp_path)
    everywhere(tmp_path)
    leave(tmp_path / "offsets/.8.strobe")
    leave(tmp_path / "offsets/.5.crc")
    sweep(tmp_path)
    assert files(tmp_path) == set(counts)


def test_a_file_of_state_that_may_still_be_written_stays(tmp_path: Path) -> None:
    counts = checkpoint_with_batches(tmp_path)
    running = unfinished(tmp_path / "state/0/0", "9.zip", old=False)
    unfinished(tmp_path / "offsets", "8", old=False)
    sweep(tmp_path)
    assert files(tmp_path) == {*counts, *running}


def test_a_query_that_has_logged_no_batch_begins_with_nothing(tmp_path: Path) -> None:
    metadata = leave(tmp_path / "metadata", json.dumps({"id": "x"}))
    seen = leave(tmp_path / "sources/0/0", "the files of batch 0")
    everywhere(tmp_path)
    leave(tmp_path / "state/0/0/1.changelog", "of a batch 0 that nothing tells of")
    leave(tmp_path / "state/0/0/SSTs/000008-x.sst")
    sweep(tmp_path)
    assert files(tmp_path) == {metadata, seen}
    assert list((tmp_path / "state").iterdir()) == list((tmp_path / "offsets").iterdir()) == []


def test_metadata_that_lost_its_text_is_written_again(tmp_path: Path) -> None:
    leave(tmp_path / "metadata")
    sweep(tmp_path)
    assert files(tmp_path) == set()


@pytest.mark.parametrize(
    ("there", "words"),
    [("state/0/0/2.changelog", "has the state after batch 1"), ("offsets/0.bak", "offsets/0.bak")],
)
def test_what_is_no_leftover_is_reported_and_left_alone(tmp_path: Path, there: str, words: str) -> None:
    before = {leave(tmp_path / there, "?"), *unfinished(tmp_path / "offsets", "0")}
    with pytest.raises(Damaged, match=words):
        sweep(tmp_path)
    assert files(tmp_path) == before


@pytest.mark.spark
def test_a_stage_with_state_starts_where_spark_was_killed_in_its_first_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Without the sweep Spark refuses with STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY, at every start."""
    (tmp_path / "in").mkdir()

    def pipeline(*, bounded: bool) -> strobe.Pipeline:
        made = strobe.Pipeline("first", checkpoint=strobe.CheckpointConfig(interval=None))
        trigger = {"availableNow": True} if bounded else None

        @made.stage(uid="counts", trigger=trigger, output_mode="update", to=strobe.DeltaSink("counts", key="word"))
        def counts(spark: SparkSession) -> DataFrame:
            words = spark.readStream.text(str(tmp_path / "in")).select(F.explode(F.split("value", " ")).alias("word"))
            return words.groupBy("word").count()

        return made

    nothing = start_job(pipeline(bounded=False), home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    nothing.stop()
    checkpoint = stage_checkpoint(nothing.home, NodeId("counts"))
    assert (checkpoint / "metadata").exists()
    everywhere(checkpoint)
    leave(checkpoint / "state/0/0/1.changelog")
    (tmp_path / "in/a.txt").write_text("to be or not to be")
    job = start_job(pipeline(bounded=True), home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    finish(job)
    expected = [("be", 2), ("not", 1), ("or", 1), ("to", 2)]
    assert delta_rows(tmp_path / "counts", "select word, count from t order by 1") == expected

"""A query with several watermarks goes on with each of them where it was, after a resume and after a restore.

Spark logs only the watermark that it goes by, the slowest: each side would begin at zero, and the slowest one would not
move until rows have come on both sides again.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strobe.hosts.spark.checkpoint import watermarks
from strobe.model.errors import Damaged
from tests.corpus.jobs import World


@pytest.mark.spark
def test_each_side_of_an_outer_join_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    world = World("own_join", spark, tmp_path)
    world.start()
    for step in range(5):
        world.feed(step)
        world.rest(step)
        if step == 2:
            world.stop()
            world.start()
    assert world.job is not None
    savepoint = str(world.job.savepoint(tmp_path / "savepoint"))
    assert [order for order, _ in settled(world)] == [1, 2, 3, 4], "5 and 6 may still be paid"
    world.stop()
    world.start()
    world.feed(5)
    world.rest(5)
    world.stop()
    expected = [(1, 1), (2, None), (3, None), (4, 4), (5, 5), (6, None)]
    assert settled(world) == expected, "6 was not paid, as both sides together tell"
    theirs, world.base = world.base, tmp_path / "fork"
    world.start("forked", snapshot=savepoint, partitions=3, sinks_from=(str(theirs),))
    world.rest(5)
    world.stop()
    assert settled(world) == expected


def settled(world: World) -> list[tuple[int, int | None]]:
    return sorted((row["order"], row["paid_order"]) for row in world.rows("settled"))  # type: ignore[index]


def test_the_newest_file_up_to_a_batch_counts(tmp_path: Path) -> None:
    assert watermarks.read(tmp_path, 7) is None
    watermarks.write(tmp_path, 3, {"at 5 minutes #1": 1_700_000_000_000, "at 5 minutes #2": None})
    watermarks.write(tmp_path, 4, {"at 5 minutes #1": 1_700_000_000_001, "at 5 minutes #2": -1})
    assert watermarks.read(tmp_path, 2) is None
    assert watermarks.read(tmp_path, 3) == {"at 5 minutes #1": 1_700_000_000_000, "at 5 minutes #2": None}
    assert watermarks.read(tmp_path, 9) == {"at 5 minutes #1": 1_700_000_000_001, "at 5 minutes #2": -1}
    watermarks.write(tmp_path, 104, {})
    assert watermarks.read(tmp_path, 103) == watermarks.read(tmp_path, 3), "4 is too old to be needed"


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"version": 2, "watermarks": {}}', '{"version": 1, "watermarks": {"a": "b"}}']
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    watermarks.write(tmp_path, 0, {})
    (tmp_path / "watermarks/0").write_text(text)
    with pytest.raises(Damaged, match="watermarks/0, which says how far"):
        watermarks.read(tmp_path, 0)

"""A death at every step of a sink's two-phase commit: no row lost, none twice, none visible before its snapshot.

One job runs through all of it, with an image kept at each step. In each of them every visible row must belong to a
complete snapshot (the one whose part it is in, or a later one), and no row may be there twice; when it is resumed, all
rows come. At the last step the driver is really killed, and so are two restores, while they settle what an image has
left in doubt.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strobe.hosts.spark.crash_points import POINTS
from strobe.hosts.spark.pipeline.loading import load_pipeline
from strobe.store.locate import locate
from tests.support.spark.images import Images, WatchedDriver
from tests.support.spark.jobs import run_to_the_end
from tests.support.spark.two_phase import add_file, visible

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[4]
PIPELINE = Path(__file__).parents[3] / "support" / "spark" / "pipelines" / "parts_job.py"
CASES = {
    "sinks": [p for p in POINTS if p.startswith(("sink.", "commit."))],
    "settle": [p for p in POINTS if p.startswith("settle.")],
}


ROWS = 5  # of a file


def world(root: Path) -> dict[str, str]:
    return {"NUMBERS_IN": str(root / "in"), "NUMBERS_OUT": str(root / "out"), "PYTHONPATH": str(ROOT)}


def command(root: Path) -> list[str]:
    return ["run", str(PIPELINE), "--home", str(root / "home")]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    """Of a driver that has been killed at the last step."""
    root = tmp_path_factory.mktemp("sinks") / "job"
    add_file(root / "in", 0)
    images = Images(root)
    *points, last = CASES["sinks"]
    with WatchedDriver(root, *command(root), env=world(root)) as driver:
        driver.reach("commit.forgotten")  # there is a complete snapshot, and its part is visible
        for number, point in enumerate(points, 1):
            images.take(driver, point, partial(add_file, root / "in", number))
        driver.reach(last)
        driver.kill()
    return images


def resume(root: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until all rows that are there are visible, once."""
    check_visible(root)
    for name, value in {**world(root), "BOUNDED": "1"}.items():
        monkeypatch.setenv(name, value)
    run_to_the_end(load_pipeline(str(PIPELINE)), root / "home", spark)
    files = len(list((root / "in").glob("*.parquet")))
    assert sorted(int(str(row["id"])) for row in visible(root / "out")) == list(range(files * ROWS))


def check_visible(root: Path) -> None:
    ids = [row["id"] for row in visible(root / "out")]
    assert len(ids) == len(set(ids)), "a row is visible twice"
    parts = [int(path.stem.rpartition("-")[2]) for path in (root / "out").glob("part-*.json")]
    assert max(parts) <= locate("numbers", root / "home").snapshot, "a row is visible before its snapshot is complete"


def killed(root: Path, point: str, *options: str) -> None:
    """A restore that settles a sink."""
    run = subprocess.run(
        [sys.executable, "-m", "strobe.cli.main", *command(root), *options],
        env={**os.environ, **world(root), "STROBE_CRASH_AT": point},
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert run.returncode == -signal.SIGKILL, f"{point} was never reached:\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}"


def newest(root: Path) -> str:
    return f"numbers/{locate('numbers', root / 'home').snapshot}"


def test_a_job_that_dies_at_any_step_of_a_commit_loses_and_repeats_nothing(
    images: Images, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    resume(images.root, spark, monkeypatch)  # what the SIGKILL has left
    for point in images.points:
        images.put_back(point, spark)
        resume(images.root, spark, monkeypatch)


@pytest.mark.parametrize(
    ("doubt", "point"),
    [
        pytest.param("commit.begun", "settle.part-committed", id="a part that the snapshot names"),
        pytest.param("sink.vote-durable", "settle.part-aborted", id="a part that no snapshot names"),
    ],
)
def test_a_restore_killed_while_it_settles_a_sink_is_finished_by_the_next_start(
    images: Images, doubt: str, point: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = images.root
    images.put_back(doubt, spark)
    killed(root, point, "-s", newest(root))
    resume(root, spark, monkeypatch)

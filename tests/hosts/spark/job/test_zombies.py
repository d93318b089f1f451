"""A driver that is stopped at a crash point with all of its processes, given up, and continued when another one has
finished the job: nothing of it is seen, nothing is gone, and it is told that it is fenced off.

Two of the most dangerous points, which every job passes. `python -m tests.zombies` does all, also with a bucket.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strobe.hosts.spark.crash_points import POINTS
from strobe.hosts.spark.home import job_home
from tests.zombies.harness import differences, everything, haunt
from tests.zombies.plays import LEFT_OUT, NOT_IN_A_BUCKET, PLAYS, Stand


def test_every_crash_point_has_a_play_or_a_reason_why_not() -> None:
    assert set(PLAYS) | set(LEFT_OUT) == set(POINTS)
    assert not set(PLAYS) & set(LEFT_OUT)
    assert set(NOT_IN_A_BUCKET) < set(PLAYS)


def test_a_job_that_stands_gets_no_more_input() -> None:
    """A file that came while others finish the job would be missing from what they wrote."""
    stand, feeding, go, fed = Stand(), threading.Event(), threading.Event(), []

    def feed() -> None:
        feeding.set()
        assert go.wait(60)
        fed.append("a file")

    threads = [threading.Thread(target=stand.feed_until_reached, args=(feed,)), threading.Thread(target=stand.reach)]
    threads[0].start()
    assert feeding.wait(60)
    threads[1].start()
    assert stand._reached.wait(60)
    assert threads[1].is_alive(), "it stands while a file is being written"
    go.set()
    for thread in threads:
        thread.join(60)
    assert fed == ["a file"]


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("home/jobs/ledger/snapshots/chk-000003/manifest.json", True),
        ("home/jobs/ledger/blobs/ab/abcd", True),
        ("home/jobs/ledger/incarnation.json", True),
        ("home/jobs/ledger/stages/balances/t1.1/spark/commits/4", True),
        ("home/jobs/ledger/stages/balances/t1/spark/commits/4", False),  # of the driver's own generation
        ("home/jobs/ledger/channels/transfers/_delta_log/00000000000000000007.json", True),
        ("balances/_delta_log/00000000000000000007.json", True),
        ("balances/part-0.parquet", False),  # no log names it
        ("home/jobs/ledger/logs/spark.log", False),
        ("out/part-1-000007.json", True),
    ],
)
def test_a_file_that_comes_counts_where_somebody_looks(tmp_path: Path, name: str, seen: bool) -> None:
    play = PLAYS["batch.in-channel"](tmp_path, None)
    (play.home / "jobs/ledger").mkdir(parents=True)
    memory = {"incarnation": 2, "timeline": 1, "generation": 1}
    (play.home / "jobs/ledger/incarnation.json").write_text(json.dumps(memory))
    before = {file: content for file, content in everything(play).items() if file != name}
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text("of the driver that was given up")
    assert bool(differences(play, before, everything(play))) == seen


@pytest.mark.parametrize("act", ["deleted", "changed"])
def test_what_another_driver_has_written_may_neither_change_nor_go(tmp_path: Path, act: str) -> None:
    play = PLAYS["batch.in-channel"](tmp_path, None)
    (play.home / "jobs/ledger").mkdir(parents=True)
    (play.home / "jobs/ledger/incarnation.json").write_text('{"timeline": 1, "generation": 1}')
    rows = tmp_path / "balances/part-0.parquet"  # which a log names
    rows.parent.mkdir()
    rows.write_text("rows")
    before = everything(play)
    rows.unlink() if act == "deleted" else rows.write_text("others")
    assert differences(play, before, everything(play)) == f"{act}: balances/part-0.parquet"


@pytest.mark.slow
@pytest.mark.parametrize("point", ["store.manifest.before", "commit.begun"])
def test_a_driver_that_wakes_after_another_one_has_finished_changes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setattr(job_home, "HEARTBEAT", 0.05)  # how long a look at a silent driver takes
    assert haunt((point,), tmp_path, lambda: spark, {}) == {}

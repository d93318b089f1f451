"""An image is what a SIGKILL leaves: one moment of all processes, and nothing that only a live one has."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from strobe.hosts.spark.crash_points import POINTS
from tests.support.processes import family
from tests.support.spark.images import WatchedDriver, stopped

# A process and its child take turns: each counts on from what the other one has written, in a file of its own.
PAIR = """
import fcntl, os, sys
there = sys.argv[1]
lock = open(f"{there}/lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
to_child, to_parent = os.pipe(), os.pipe()
mine, wait, go = ("b", to_child[0], to_parent[1]) if os.fork() == 0 else ("a", to_parent[0], to_child[1])
number = 0
with open(f"{there}/{mine}", "wb", buffering=0) as file:
    while True:
        if (mine, number) != ("a", 0) and not os.read(wait, 1):
            break
        number += 1
        file.write(b".")
        if mine == "b" and number == 1:
            print("both", flush=True)
        os.write(go, b".")
"""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "there").mkdir()
    command = [sys.executable, "-c", textwrap.dedent(PAIR), str(tmp_path / "there")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "both\n"
        yield process
        for pid in family(process.pid):
            os.kill(pid, 9)


def sizes(place: Path) -> tuple[int, int]:
    return (place / "a").stat().st_size, (place / "b").stat().st_size


def test_a_copy_holds_one_moment_of_all_processes(pair: subprocess.Popen[str], tmp_path: Path) -> None:
    assert len(family(pair.pid)) == 2
    last = 0
    for number in range(20):
        with stopped(pair.pid):
            (a, b), image = sizes(tmp_path / "there"), tmp_path / str(number)
            shutil.copytree(tmp_path / "there", image)
            assert sizes(tmp_path / "there") == (a, b), "somebody has written meanwhile"
        assert sizes(image) == (a, b)
        assert b <= a <= b + 1, "the files are of different moments"
        while sizes(tmp_path / "there")[1] <= b:  # it goes on
            assert pair.poll() is None
        assert b >= last
        last = b


def test_a_lock_is_no_part_of_a_copy(pair: subprocess.Popen[str], tmp_path: Path) -> None:
    with stopped(pair.pid):
        shutil.copytree(tmp_path / "there", tmp_path / "image")
        with (tmp_path / "there/lock").open() as held, pytest.raises(BlockingIOError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with (tmp_path / "image/lock").open() as free:
            fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_driver_that_ends_before_a_point_is_a_failure_that_says_what_it_said(tmp_path: Path) -> None:
    with (
        WatchedDriver(tmp_path / "job", "run", "no-such-file.py", env={}) as driver,
        pytest.raises(pytest.fail.Exception, match=r"(?s)batch.computed was not reached .exit code 2.*no-such-file.py"),
    ):
        driver.reach(next(p for p in POINTS if p.startswith("batch.")))

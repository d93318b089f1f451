"""`strobe run -d`: jobs that outlive the terminal, several at once; and `strobe logs`."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import alive
from tests.support.spark.ledger_data import write_transfers
from tests.support.spark.orders import PIPELINE, Place, windows, windows_in
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    write_transfers(tmp_path / "in", files=2, rows=40)
    made = Place(tmp_path)
    yield made
    for runtime in (tmp_path / "home/jobs").glob("*/runtime.json"):
        pid = int(json.loads(runtime.read_text())["pid"])
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_detached_jobs_outlive_their_terminal_and_obey_orders(place: Place) -> None:
    first = place.strobe("run", "-d", str(PIPELINE), "--json")
    assert first.returncode == 0, first.stderr
    started = json.loads(first.stdout)
    assert started["job"] == "windows"
    assert os.getsid(started["pid"]) == started["pid"], "it has no terminal that could take it along"
    os.kill(started["pid"], signal.SIGHUP)

    other = place.strobe("run", "-d", str(PIPELINE), "--name", "other", WINDOWS_OUT=str(place.root / "other"))
    assert other.returncode == 0, other.stderr
    assert "other runs in the background as process" in other.stdout
    assert "strobe logs other -f" in other.stdout
    listed = {row["job"]: row["state"] for row in json.loads(place.strobe("list", "--json").stdout)}
    assert listed == {"windows": "running", "other": "running"}
    assert alive(started["pid"])

    busy = place.strobe("run", "-d", str(PIPELINE))
    assert busy.returncode == 2
    assert "is already running" in busy.stderr

    logged = place.strobe("logs", "windows", "-n", "5000")
    assert "stage transfers starts (1 of 2)" in logged.stdout
    assert len(place.strobe("logs", "windows", "-n", "2").stdout.splitlines()) == 2

    eventually(lambda: place.strobe("checkpoint", "windows").returncode == 0, "a checkpoint by order")
    stopped = place.strobe("stop", "windows", "--drain", "--json")
    assert stopped.returncode == 0, stopped.stderr
    assert place.sound(json.loads(stopped.stdout)["path"])
    assert json.loads(place.strobe("status", "windows", "--json").stdout)["state"] == "stopped"
    assert windows_in(place.root / "out") == windows(place.root / "in")
    gone = time.monotonic() + 60
    while alive(started["pid"]):
        assert time.monotonic() < gone
        time.sleep(0.05)
    followed = place.strobe("logs", "windows", "-f", "-n", "1")
    assert followed.returncode == 0, "there is nothing to wait for"
    assert place.strobe("cancel", "other", "--delete").returncode == 0
    assert json.loads(place.strobe("list", "--json").stdout)[0]["checkpoints"] == []


def test_a_detached_job_that_does_not_start_says_why_with_the_drivers_exit_code(place: Place) -> None:
    failed = place.strobe("run", "-d", str(PIPELINE), WINDOWS_FAULT="out of luck")
    assert failed.returncode == 2
    assert "out of luck" in failed.stderr
    assert "Traceback" not in failed.stderr
    killed = place.strobe("run", "-d", str(PIPELINE), STROBE_CRASH_AT="batch.computed")
    assert killed.returncode in (0, 1)  # it died as soon as it ran, or just before
    missing = place.strobe("logs", "nobody")
    assert (missing.returncode, "There is no job 'nobody'" in missing.stderr) == (2, True)
    both = place.strobe("logs", "windows", "-f", "--json")
    assert both.returncode == 2

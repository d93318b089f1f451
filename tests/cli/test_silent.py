"""A driver that holds its job and does not answer: nobody waits for it, and everybody says the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from strobe.hosts.spark.home import silence
from strobe.hosts.spark.home.job_home import host_name
from strobe.store.layout import JobLayout
from tests.cli.conftest import Strobe

LAYOUT = JobLayout("ledger")
# Holds the lock and listens, as a driver does, and has nothing to say.
DRIVER = """
import fcntl, socket, sys
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    home = tmp_path / ".strobe"
    (home / LAYOUT.root).mkdir(parents=True)
    command = [sys.executable, "-c", DRIVER, str(home / LAYOUT.lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        runtime = {"job": "ledger", "state": "running", "pid": process.pid, "host": host_name(), "port": port}
        (home / LAYOUT.runtime).write_text(json.dumps(runtime))
        (home / LAYOUT.token).write_text("secret")
        yield process
        process.kill()


def suspend(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only where there is a /proc")
def test_a_suspended_driver_is_named_and_nothing_is_sent_to_it(strobe: Strobe, driver: subprocess.Popen[str]) -> None:
    suspend(driver)
    assert "suspended" in strobe("list").out
    for command in ("status", "cancel", "checkpoint", "savepoint", "stop"):
        done = strobe(command, "ledger")
        assert done.code == 1
        assert f"its driver, process {driver.pid}, is suspended" in done.err
        assert "Nothing was changed." in done.err
        assert f"kill -CONT {driver.pid}" in done.err


def test_a_driver_without_a_heartbeat_is_not_waited_for(
    strobe: Strobe, driver: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the connection and never answers. What it was asked for is not known to be done or not."""
    monkeypatch.setattr(silence, "_SILENT", 60.0)
    lock = tmp_path / ".strobe" / LAYOUT.lock
    os.utime(lock, (time.time() - 59.5, time.time() - 59.5))  # silent in half a second
    done = strobe("cancel", "ledger")
    assert done.code == 1
    assert "has given no sign of life for 60 s" in done.err
    assert "It will do what it was asked for when it wakes." in done.err
    assert "silent" in strobe("list").out

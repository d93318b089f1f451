"""`strobe run --supervise` with real drivers: both they and their JVMs are killed, and the job goes on by itself."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import alive, children, command, family
from tests.support.spark.ledger_data import write_transfers
from tests.support.spark.orders import PIPELINE, Place
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def jvm_of(driver: int) -> int:
    return next(pid for pid in children(driver) if "java" in command(pid))


def test_a_job_gets_up_by_itself_and_leaves_nothing_behind(tmp_path: Path) -> None:
    write_transfers(tmp_path / "in", files=2, rows=40)
    place = Place(tmp_path)
    told = tmp_path / "told"
    program = tmp_path / "tell.py"
    program.write_text(f"import sys\nopen({str(told)!r}, 'a').write(sys.stdin.read() + '\\n')\n")
    notify = f"{sys.executable} '{program}'"
    started = place.strobe("run", "-d", "--supervise", "--notify", notify, str(PIPELINE), "--json")
    assert started.returncode == 0, started.stderr
    supervisor = int(json.loads(started.stdout)["pid"])

    def status() -> dict[str, Any]:
        asked = place.strobe("status", "windows", "--json")
        return json.loads(asked.stdout) if asked.returncode == 0 else {}

    def restarts() -> int:
        now = status()
        return int(now["supervisor"]["restarts"]) if now.get("state") == "running" and "stages" in now else -1

    try:
        eventually(lambda: restarts() == 0, "it runs")
        driver = int(status()["pid"])
        assert driver != supervisor
        before = family(driver)
        os.kill(driver, signal.SIGKILL)
        eventually(lambda: restarts() == 1, "the driver is started again")
        assert not any(map(alive, before)), "something of the first driver is left"
        assert status()["supervisor"]["cause"] == "its driver was killed by signal 9"

        os.kill(jvm_of(int(status()["pid"])), signal.SIGKILL)
        eventually(lambda: restarts() == 2, "a driver whose JVM died is started again")
        assert "JVM was killed by signal 9" in status()["supervisor"]["cause"]
        assert "supervised by process" in place.strobe("status", "windows").stdout

        whole = family(supervisor)
        os.kill(supervisor, signal.SIGTERM)
        eventually(lambda: not any(map(alive, whole)), "everything has ended")
        assert status()["state"] == "stopped"
        events = [json.loads(line) for line in told.read_text().splitlines()]
        assert [e["type"] for e in events if e["type"] == "job.restarted"] == ["job.restarted"] * 2
        assert "job.failed" in {e["type"] for e in events}, "the second driver could say so itself"
    finally:
        for pid in reversed(family(supervisor)):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def test_what_is_wrong_with_the_file_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import strobe\n\npipeline = strobe.Pipeline('p'\n")
    done = Place(tmp_path).strobe("run", "--supervise", str(tmp_path / "bad.py"))
    assert done.returncode == 2
    assert done.stderr.count("error:") == 1

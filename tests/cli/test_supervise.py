"""The supervisor of a driver: what it starts again, what not, and that it leaves nothing behind. Drivers are small
programs here; `tests/hosts/spark/job/test_supervised.py` has real ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from strobe.cli.detach import Starter
from strobe.cli.main import main
from strobe.cli.supervise import HOPELESS, SUPERVISED, Backoff, Supervisor, supervisor_of
from strobe.hosts.spark.home.supervision import Supervision, SupervisorStatus, note_supervision, read_supervision
from strobe.model.errors import Failed
from tests.support.waiting import eventually

# Writes down that it was started, and what it was told. Then it says that the job runs, and does what `does` says.
DRIVER = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
root = Path({root!r})
with (root / "starts").open("a") as file:
    file.write(os.environ[{variable!r}] + "\\n")
start = len((root / "starts").read_text().splitlines())
pipe = int(sys.argv[sys.argv.index("--starter-pipe") + 1])
def say(**word):
    os.write(pipe, json.dumps(word).encode()); os.close(pipe)
{does}
"""
QUICK = Backoff(limit=3, first=0.01, longest=0.02, healthy=1000.0)


@dataclass
class World:
    root: Path
    told: list[tuple[str, str]] = field(default_factory=list)

    def supervisor(self, does: str, backoff: Backoff = QUICK, *more: str) -> Supervisor:
        program = self.root / "driver.py"
        program.write_text(DRIVER.format(root=str(self.root), variable=SUPERVISED, does=does))
        (self.root / "home/jobs/shop").mkdir(parents=True, exist_ok=True)
        return Supervisor(
            "shop", self.root / "home", [sys.executable, str(program), *more], Starter(None), backoff,
            lambda type, words: self.told.append((type, words)),
        )  # fmt: skip

    @property
    def starts(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.root / "starts").read_text().splitlines()]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_driver_that_ends_well_is_not_started_again(world: World) -> None:
    assert world.supervisor("say(running=True)").run() == 0
    assert len(world.starts) == 1


def test_a_driver_that_is_killed_is_started_again_and_told_why(world: World) -> None:
    does = "say(running=True)\nif start < 3: os.kill(os.getpid(), signal.SIGKILL)"
    assert world.supervisor(does).run() == 0
    assert [(s["restarts"], s["cause"]) for s in world.starts] == [
        (0, ""), (1, "its driver was killed by signal 9"), (2, "its driver was killed by signal 9"),
    ]  # fmt: skip
    assert world.starts[0]["pid"] == os.getpid()
    assert world.told == [("job.restarted", "its driver was killed by signal 9")] * 2


@pytest.mark.parametrize("code", [2, HOPELESS])
def test_what_cannot_get_better_is_not_tried_again(world: World, code: int) -> None:
    assert world.supervisor(f"say(error='no'); sys.exit({code})").run() == code
    assert len(world.starts) == 1


def test_the_first_start_of_a_detached_job_is_not_tried_again(world: World) -> None:
    assert world.supervisor("sys.exit(1)", QUICK, "--starter-pipe", "0").run() == 1
    assert len(world.starts) == 1


def test_a_driver_that_never_runs_is_given_up_after_the_limit(world: World) -> None:
    with pytest.raises(Failed, match=r"died 4 times in a row; the last time: its driver ended with code 1"):
        world.supervisor("sys.exit(1)").run()
    assert len(world.starts) == 4
    assert world.told[-1][0] == "job.given_up"


def test_a_driver_that_ran_for_long_makes_good_for_those_before(world: World) -> None:
    does = "say(running=True)\nsys.exit(0 if start == 9 else 1)"
    assert world.supervisor(does, Backoff(limit=1, first=0.01, longest=0.01, healthy=0.0)).run() == 0
    assert len(world.starts) == 9


def test_the_cause_is_what_the_driver_noted_itself(world: World) -> None:
    noted = {"state": "failed", "error": "Spark's JVM was killed by signal 9."}
    runtime = world.root / "home/jobs/shop/runtime.json"
    does = f"Path({str(runtime)!r}).write_text({json.dumps(noted)!r})\nsys.exit(start == 1)"
    assert world.supervisor(does).run() == 0
    assert world.starts[1]["cause"] == noted["error"]


def test_pauses_grow_to_a_limit() -> None:
    backoff = Backoff(first=1.0, longest=60.0)
    assert [backoff.pause(n) for n in (1, 2, 3, 7, 5000)] == [1, 2, 4, 60, 60]


def test_nothing_of_a_dead_driver_is_left_when_the_next_one_starts(world: World) -> None:
    """Not even what ignores that its parent is gone, and has left the driver's session."""
    does = f"""
other = Path({str(world.root / "left")!r})
if start == 1:
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    other.write_text(str(child.pid))
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(0 if not Path("/proc/" + other.read_text()).exists() else 2)
"""
    import strobe.cli.supervise as module

    before, module._LEFTOVERS = module._LEFTOVERS, 0.2  # type: ignore[misc]
    try:
        assert world.supervisor(does).run() == 0
    finally:
        module._LEFTOVERS = before  # type: ignore[misc]


def test_a_restore_is_asked_for_again_only_if_it_has_not_begun(world: World) -> None:
    memory = world.root / "home/jobs/shop/incarnation.json"
    restored = json.dumps({"incarnation": 1, "timeline": 2, "snapshot": 0, "generation": 0})
    does = f"if start == 2: Path({str(memory)!r}).write_text({restored!r})\nsys.exit(start < 4)"
    assert world.supervisor(does).run() == 0
    assert [s["resume"] for s in world.starts] == [False, False, True, True]


PROGRAM = """
import sys
from pathlib import Path
from strobe.cli.detach import Starter
from strobe.cli.supervise import Backoff, Supervisor
sys.exit(Supervisor("shop", Path(sys.argv[1]), [sys.executable, *sys.argv[2:]], Starter(None), Backoff(first=1000.0),
                    lambda type, words: print(words, flush=True)).run())
"""


def started(world: World, does: str) -> subprocess.Popen[str]:
    world.supervisor(does)
    command = [sys.executable, "-c", PROGRAM, str(world.root / "home"), str(world.root / "driver.py")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_signal_reaches_the_driver_once_and_its_end_is_the_supervisors(world: World) -> None:
    does = """
got = []
signal.signal(signal.SIGTERM, lambda *_: got.append(1))
print("ready", flush=True)
while not got: time.sleep(0.01)
(root / "got").write_text(str(len(got)))
"""
    process = started(world, does)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert (world.root / "got").read_text() == "1"
    assert len(world.starts) == 1


def test_a_signal_while_it_waits_ends_the_supervisor(world: World) -> None:
    process = started(world, "sys.exit(1)")
    assert process.stdout is not None
    assert "ended with code 1" in process.stdout.readline(), "now it waits for a quarter of an hour"
    known = read_supervision(world.root / "home", "shop")
    assert known is not None
    assert (known.status.pid, known.status.restarts) == (process.pid, 1)
    assert known.next_start is not None
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert read_supervision(world.root / "home", "shop") is None, "a supervisor that is gone supervises nothing"


def test_a_driver_ends_when_its_supervisor_is_killed(world: World) -> None:
    does = """
from strobe.cli.supervise import obey_supervisor, supervisor_of
told = supervisor_of(os.environ)
assert told is not None and "STROBE_SUPERVISED" not in os.environ
def end(*_):
    (root / "ended").touch(); sys.exit(0)
signal.signal(signal.SIGTERM, end)
obey_supervisor(told.status)
print("ready", flush=True)
time.sleep(1000)
"""
    process = started(world, does)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.wait()
    eventually((world.root / "ended").exists, "the driver has ended")


def test_a_process_without_a_supervisor_has_none() -> None:
    assert supervisor_of({}) is None


def test_a_job_that_is_not_there_gets_no_file(tmp_path: Path) -> None:
    note_supervision(tmp_path, "shop", Supervision(SupervisorStatus(1, 0, 10)))
    assert list(tmp_path.iterdir()) == []
    assert read_supervision(tmp_path, "shop") is None


def test_status_of_a_job_that_waits_for_its_next_start_names_the_supervisor(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    process = started(world, "sys.exit(1)")
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        home = ["--home", str(world.root / "home")]
        (world.root / "home/jobs/shop/incarnation.json").write_text("{}")
        for command in (["status", "shop", *home], ["stop", "shop", *home]):
            with pytest.raises(SystemExit):
                main(command)
            said = "".join(capsys.readouterr())
            assert f"Its supervisor, process {process.pid}, starts it" in said
            assert f"`kill {process.pid}` ends it for good" in said
        with pytest.raises(SystemExit):
            main(["status", "shop", "--json", *home])
        told = json.loads(capsys.readouterr().out)["supervisor"]
        assert (told["pid"], told["restarts"], told["cause"]) == (process.pid, 1, "its driver ended with code 1")
    finally:
        process.terminate()
        process.wait(60)

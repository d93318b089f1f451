"""The job's driver as a supervisor runs it: `strobe run` in a process of its own, started again whenever it has ended.

A driver is a Python process, its JVM (which on a local master is the executor, too), and the Python workers of that.
Each start has a mark of its own, so that what an earlier one has left is never taken for the present one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from chaos.processes import MARK, command, is_alive, kill, marked
from strobe.store.runtime import UNKNOWN, Runtime, read_runtime

__all__ = ["JOB", "Driver", "Start"]

JOB = "ledger"
LEDGER = Path(__file__).with_name("ledger.py")


@dataclass(slots=True)
class Start:
    """One start of the driver. `point`: where it is to die by itself."""

    number: int
    mark: str
    process: subprocess.Popen[bytes]
    point: str = ""

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def jvm(self) -> list[int]:
        return [pid for pid in marked(self.mark) if "org.apache.spark.deploy.SparkSubmit" in command(pid)]

    def workers(self) -> list[int]:
        return [pid for pid in marked(self.mark) if "pyspark.daemon" in (said := command(pid)) or "_runner" in said]


@dataclass
class Driver:
    home: Path
    folder: Path  # for its log
    env: Mapping[str, str]
    mark: str
    starts: int = 0
    present: Start | None = None
    ended: dict[str, int] = field(default_factory=dict)  # how often, by how
    older: list[Start] = field(default_factory=list)  # drivers that were given up, and may still be alive

    def start(self, point: str = "", *, mode: str = "aligned") -> Start:
        self.starts += 1
        mark = f"{self.mark}-driver-{self.starts}"
        environment = {**os.environ, **self.env, "LEDGER_MODE": mode, MARK: mark}
        environment.pop("STROBE_CRASH_AT", None)
        if point:
            environment["STROBE_CRASH_AT"] = point
        command = [sys.executable, "-m", "strobe.cli.main", "run", str(LEDGER), "--home", str(self.home)]
        with (self.folder / "driver.log").open("ab") as log:
            log.write(f"── start {self.starts}, {mode} {point} ──\n".encode())
            log.flush()
            process = subprocess.Popen(
                [*command, "--master", "local[2]"], cwd=self.folder, env=environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self.present = Start(self.starts, mark, process, point)
        return self.present

    def give_up(self) -> None:
        """Leave the present one alone: it is stopped, and another is to take its place."""
        if self.present is not None:
            self.older.append(self.present)
            self.present = None

    def runtime(self) -> Runtime:
        try:
            return read_runtime(self.home, JOB) or UNKNOWN
        except Exception:  # there is never half a file, but the disk may be full, or the home may not exist yet
            return UNKNOWN

    @property
    def running(self) -> bool:
        """Whether the present driver says that every stage runs."""
        if self.present is None or not self.present.alive:
            return False
        said = self.runtime()
        return said.state == "running" and said.pid == self.present.process.pid

    def reap(self) -> str | None:
        """How the present driver has ended, if it has; from then on there is none."""
        start = self.present
        if start is None or start.alive:
            return None
        code = start.process.returncode
        how = f"signal {-code}" if code < 0 else f"exit {code}"
        self.ended[how] = self.ended.get(how, 0) + 1
        self.present = None
        return how

    def last_words(self) -> str:
        """The newest error that it has printed."""
        with (self.folder / "driver.log").open("rb") as log:
            log.seek(-min(20_000, log.seek(0, os.SEEK_END)), os.SEEK_END)
            said = [line for line in log.read().decode(errors="replace").splitlines() if line.startswith("error:")]
        return said[-1][7:207] if said else "it said nothing"

    def close(self) -> None:
        """End everything of every start."""
        for start in (*self.older, *([self.present] if self.present else [])):
            kill(marked(start.mark))
            start.process.wait()
        for number in range(1, self.starts + 1):
            kill(pid for pid in marked(f"{self.mark}-driver-{number}") if is_alive(pid))

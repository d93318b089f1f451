"""A driver that holds its job and gives no sign of life: suspended, or on a machine that hangs.

It would never answer, so nobody should wait for its answer. Whether it is suspended can be seen at once on the machine
that it runs on; elsewhere, and for whatever else may be wrong, only its heartbeat tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from strobe.hosts.shared.clock import SYSTEM
from strobe.model.errors import Failed, StrobeError
from strobe.store.holding import LEASE, host_name, is_held
from strobe.store.layout import JobLayout
from strobe.store.runtime import UNKNOWN, read_runtime

__all__ = ["Silence", "silence"]

_SILENT: Final = LEASE / 2  # seconds without a heartbeat, which comes every second


@dataclass(frozen=True, slots=True)
class Silence:
    """`suspended`: its process was stopped by a signal."""

    job: str
    pid: int | None
    seconds: float
    suspended: bool

    @property
    def state(self) -> str:
        return "suspended" if self.suspended else "silent"

    def error(self, *, asked: bool) -> Failed:
        """`asked`: the driver has been asked for something already."""
        who = f"Job {self.job!r} does not answer: its driver, process {self.pid},"
        untouched = "It will do what it was asked for when it wakes." if asked else "Nothing was changed."
        if self.suspended:
            return Failed(
                f"{who} is suspended (SIGSTOP, or Ctrl-Z in its terminal).",
                untouched=untouched,
                next=f"`kill -CONT {self.pid}` lets it go on. Or end it with `kill -KILL {self.pid}`: nothing is lost, "
                "and `strobe run` resumes the job.",
            )
        return Failed(
            f"{who} has given no sign of life for {self.seconds:.0f} s.",
            untouched=untouched,
            next=f"Look at that process. If it is gone for good, `strobe run` takes the job over: it waits until the "
            f"driver has been silent for {LEASE:.0f} s.",
        )


def silence(home: Path, job: str) -> Silence | None:
    """None if nobody holds the job, or its driver is well."""
    try:
        runtime = read_runtime(home, job) or UNKNOWN
        age = SYSTEM.time() - (home / JobLayout(job).lock).stat().st_mtime
    except (StrobeError, OSError):
        return None
    pid = runtime.pid
    suspended = pid is not None and runtime.host == host_name() and _is_suspended(pid)
    if not (suspended or age > _SILENT) or not is_held(home, job):
        return None
    return Silence(job, pid, max(age, 0.0), suspended)


def _is_suspended(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in ("T", "t")

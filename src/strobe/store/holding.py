"""Who holds a job: the lock beside its snapshots, taken by whichever host runs it, seen from outside.

The kernel gives the lock back when its holder dies, so the answer is never stale; it may be out of date by the time it
is used, and nothing may be written on the strength of it.

Two machines may share a directory and not the locks in it. So the lock's file says on which machine its holder runs,
and its time is the holder's last sign of life: for a holder on another machine that counts, whatever the lock says.
"""

from __future__ import annotations

import fcntl
import functools
import os
import platform
import time
from pathlib import Path
from typing import Final

from strobe.model.errors import Failed
from strobe.store.layout import JobLayout
from strobe.store.small_files import open_regular

__all__ = ["LEASE", "host_name", "is_held", "machine_of", "this_machine"]

LEASE: Final = float(os.environ.get("STROBE_LEASE", "30"))  # seconds without a sign of life
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")  # one for each kernel that runs, containers included
_LONGEST: Final = 200


def host_name() -> str:
    return platform.node()


@functools.cache
def this_machine() -> str:
    """What tells the machine on which locks are shared from others: the kernel that runs now."""
    try:
        return f"{platform.node()} {_BOOT.read_text().strip()}"[:_LONGEST]
    except OSError:
        return platform.node()[:_LONGEST]


def machine_of(lock: Path) -> str:
    """Where the lock was taken last; empty if nobody said so."""
    try:
        with open(lock, "rb", opener=open_regular) as file:
            return file.read(_LONGEST * 4).decode(errors="replace")
    except OSError:
        return ""


def is_held(home: Path, job: str) -> bool:
    """Whether somebody runs the job at this moment."""
    path = home / JobLayout(job).lock
    try:
        handle = open_regular(path)
    except PermissionError as error:
        raise Failed(
            f"Job {job!r} in {home} belongs to another user.",
            untouched="Nothing was changed.",
            next="Ask as its owner, or have them open its directory to your group.",
        ) from error
    except OSError:  # it is not there, or is something that no driver takes for a lock
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return _beats_elsewhere(home, job, path)


def _beats_elsewhere(home: Path, job: str, lock: Path) -> bool:
    machine = machine_of(lock)
    if not machine or machine == this_machine():
        return False
    at_work = any(JobLayout.driver_of(p.name) is not None for p in (home / JobLayout(job).root).iterdir())
    return at_work and abs(time.time() - lock.stat().st_mtime) < LEASE

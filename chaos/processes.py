"""Processes by a mark in their environment, which their children inherit: found even when their parents are gone."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = ["MARK", "command", "is_alive", "kill", "marked", "until"]

MARK = "CHAOS_MARK"


def marked(mark: str) -> list[int]:
    """Every living process that was started with the mark, oldest first."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (path / "environ").read_bytes().split(b"\0") and is_alive(int(path.name)):
                found.append(int(path.name))
    return sorted(found)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def kill(pids: Iterable[int], number: signal.Signals = signal.SIGKILL) -> int:
    """Send them a signal; returns how many got it."""
    got = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            got += 1
    return got


def until(happened: Callable[[], bool], patience: float, poll: float = 0.1) -> bool:
    """Wait for it; False if it has not happened in time."""
    deadline = time.monotonic() + patience
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll)
    return True

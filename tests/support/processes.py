"""Processes of this machine, as the kernel shows them in /proc. Any of them may end while it is looked at."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["alive", "children", "command", "family", "fields", "processor_time"]


def alive(pid: int) -> bool:
    """Not of one that has ended and that its parent has not asked about yet: an orphan's may never do."""
    found = fields(Path(f"/proc/{pid}/stat"))
    return bool(found) and found[0] not in "ZX"


def children(pid: int) -> list[int]:
    return family(pid, deep=False)[1:]


def family(pid: int, *, deep: bool = True) -> list[int]:
    """A process and all that it has started, parents first."""
    below: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        if found := fields(path):
            below.setdefault(int(found[1]), []).append(int(path.parent.name))
    whole = [pid]
    if not deep:
        return whole + below.get(pid, [])
    for one in whole:
        whole += below.get(one, [])
    return whole


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def fields(stat: Path) -> list[str]:
    """What follows the name in a `stat` file, its state first; nothing if it is gone."""
    try:
        return stat.read_text().rpartition(")")[2].split()
    except OSError:
        return []


def processor_time(pid: int) -> float:
    """Seconds that a process and everything below it have used, with what has ended and was waited for."""
    found = (fields(Path(f"/proc/{one}/stat")) for one in family(pid))
    return sum(int(ticks) for each in found for ticks in each[11:15]) / os.sysconf("SC_CLK_TCK")

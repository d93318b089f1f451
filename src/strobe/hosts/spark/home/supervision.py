"""The supervisor of a job, as seen from outside: a small file that it keeps up to date while it lives."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from strobe.hosts.shared.durable import write_durably
from strobe.model.redaction import redact
from strobe.store.layout import JobLayout
from strobe.store.private import open_private
from strobe.store.small_files import read_as

__all__ = ["Supervision", "SupervisorStatus", "note_supervision", "read_supervision"]


@dataclass(frozen=True, slots=True)
class SupervisorStatus:
    """Who starts the driver again when it dies: how often it has, how often in a row it will, and why it last did."""

    pid: int
    restarts: int
    limit: int
    cause: str = ""
    at: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cause", redact(self.cause))


@dataclass(frozen=True, slots=True)
class Supervision:
    """`next_start` in seconds since 1970, while it waits."""

    status: SupervisorStatus
    next_start: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self.status), "next_start": self.next_start}


class _Noted(msgspec.Struct, frozen=True):
    """The file. `began` tells the process from a later one with the same number."""

    pid: int
    restarts: int
    limit: int
    cause: str
    at: str
    next_start: float | None
    began: str | None


def note_supervision(home: Path, job: str, supervision: Supervision) -> None:
    """Only for a job that is there: a first start that is refused leaves no trace."""
    path = home / JobLayout(job).supervisor
    if not path.parent.is_dir():
        return
    value = {**supervision.to_json(), "began": _began(os.getpid())}
    with contextlib.suppress(OSError):  # a full disk: who looks learns less
        write_durably(path, json.dumps(value), opener=open_private, durable=False)


def read_supervision(home: Path, job: str) -> Supervision | None:
    """None without a supervisor that is alive, on this machine."""
    try:
        noted = read_as(home / JobLayout(job).supervisor, _Noted)
    except (OSError, ValueError):
        return None
    if noted.began is None or _began(noted.pid) != noted.began:
        return None
    return Supervision(
        SupervisorStatus(noted.pid, noted.restarts, noted.limit, noted.cause, noted.at), noted.next_start
    )


def _began(pid: int) -> str | None:
    """When the process was started, so that a number that is used again is not taken for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None

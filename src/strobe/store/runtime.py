"""What whoever runs a job or a live system says of itself: one small file in its home, replaced as things change.

It is for those who look from outside: which process, on which port it takes orders, what has become of it. Nothing
that must survive depends on it, so it is not made durable, and each run writes a new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from strobe.model.errors import Damaged
from strobe.store.layout import JobLayout
from strobe.store.small_files import read_small

__all__ = ["LIVE", "SPARK", "UNKNOWN", "Runtime", "read_runtime", "runtime_json"]

SPARK: Final = "spark"
LIVE: Final = "live"
ProcessId: TypeAlias = Annotated[int, Meta(ge=1, lt=2**31)]
Port: TypeAlias = Annotated[int, Meta(ge=1, lt=2**16)]


@dataclass(frozen=True, slots=True)
class Runtime:
    """Texts are empty where nothing was said. `port` is None while no orders are taken."""

    kind: str = SPARK
    job: str = ""
    state: str = "unknown"
    pid: ProcessId | None = None
    host: str = ""
    port: Port | None = None
    started: str = ""
    ended: str = ""
    error: str = ""
    incarnation: int | None = None
    timeline: int | None = None
    master: str | None = None
    target: str = ""  # the file that a job was run from
    base: str = ""
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of each stage
    topology: str = ""  # the file that a live system was brought up with
    directory: str = ""  # and from where


UNKNOWN: Final = Runtime()
_decode = msgspec.json.Decoder(Runtime).decode


def read_runtime(home: Path, job: str) -> Runtime | None:
    """None if it was never started here."""
    path = home / JobLayout(job).runtime
    try:
        return _decode(read_small(path))
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise Damaged(
            f"{path} cannot be read: {error}.",
            untouched="Nothing was changed.",
            next="Run the job or the system again: that writes a new one. Its snapshots do not depend on it.",
        ) from error


def runtime_json(runtime: Runtime) -> str:
    return msgspec.json.format(msgspec.json.encode(runtime), indent=1).decode()

"""Who holds a job: the lock beside its snapshots, taken by whichever host runs it, seen from outside.

The kernel gives the lock back when its holder dies, so the answer is never stale; it may be out of date by the time it
is used, and nothing may be written on the strength of it.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from strobe.model.errors import Failed
from strobe.store.layout import JobLayout

__all__ = ["is_held"]


def is_held(home: Path, job: str) -> bool:
    """Whether somebody runs the job at this moment."""
    try:
        handle = os.open(home / JobLayout(job).lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except PermissionError as error:
        raise Failed(
            f"Job {job!r} in {home} belongs to another user.",
            untouched="Nothing was changed.",
            next="Ask as its owner, or have them open its directory to your group.",
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False

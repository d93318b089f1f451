"""Waiting for a moment of something that runs. Only a test that fails waits for long."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable
from typing import Final

__all__ = ["PATIENCE", "VARIABLE", "eventually", "until"]

VARIABLE: Final = "STROBE_TEST_PATIENCE"  # for runs beside work that has the processors
PATIENCE = float(os.environ.get(VARIABLE, "300"))  # seconds


def eventually(
    happened: Callable[[], object],
    what: str,
    *,
    process: subprocess.Popen[bytes] | None = None,
    over: Callable[[], str] = lambda: "",
) -> None:
    """Wait until it has happened: as long as the process runs, and as long as `over` says nothing of why it cannot."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline, f"not within {PATIENCE:.0f} s: {what}"
        assert process is None or process.poll() is None, f"it ended with {process.returncode} before: {what}"
        assert not (why := over()), f"{what}: {why}"
        time.sleep(0.02)


async def until(holds: Callable[[], object], seconds: float = 20.0) -> None:
    """The same in an event loop."""
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.002)

"""Asks running jobs and systems for their status, and never waits long for one.

A job that does not answer must not hold up the page, nor the others. So each is asked in a thread of its own, at most
once at a time, and waited for at most `LIMIT` seconds. One that was silent the last time is not waited for again: its
answer is there when it comes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from strobe.hosts.live.system.commands import ask as ask_system
from strobe.hosts.spark.job.control import call_job
from strobe.model.errors import StrobeError

__all__ = ["LIMIT", "Asked", "Statuses"]

LIMIT: Final = 1.8  # seconds; shown as silent within two
_GLANCE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Asked:
    """What it said, or why it could not be asked."""

    status: dict[str, Any] | None
    trouble: str = ""


@dataclass(slots=True)
class _Pending:
    future: Future[Asked]
    since: float


class Statuses:
    """Safe to use from several threads."""

    def __init__(self, home: Path, limit: float = LIMIT) -> None:
        self._home = home
        self._limit = limit
        self._lock = threading.Lock()
        self._pending: dict[str, _Pending] = {}
        self._silent: dict[str, str] = {}

    def job(self, name: str) -> Asked:
        return self._ask(name, lambda: call_job(self._home, name, "GET", "/v1/status", timeout=self._limit))

    def system(self, name: str) -> Asked:
        return self._ask(name, lambda: ask_system(self._home, name, "GET", "/v1/status", timeout=self._limit))

    def forget(self, name: str) -> None:
        """The job does not run: forget that it did not answer."""
        with self._lock:
            self._silent.pop(name, None)

    def _ask(self, name: str, ask: Callable[[], dict[str, Any]]) -> Asked:
        with self._lock:
            pending = self._pending.get(name)
            if pending is None:
                pending = self._pending[name] = _Pending(Future(), time.monotonic())
                threading.Thread(target=self._work, args=(name, ask, pending), name=f"ask-{name}", daemon=True).start()
            left = max(_GLANCE, self._limit - (time.monotonic() - pending.since))
            patience = _GLANCE if name in self._silent else left
        try:
            return pending.future.result(patience)
        except TimeoutError:
            with self._lock:
                silent = self._silent.setdefault(
                    name, f"Job {name!r} does not answer: nothing came within {self._limit:.0f} s."
                )
            return Asked(None, silent)

    def _work(self, name: str, ask: Callable[[], dict[str, Any]], pending: _Pending) -> None:
        try:
            asked = Asked(ask())
        except StrobeError as error:
            asked = Asked(None, error.what.replace("timed out", f"nothing came within {self._limit:.0f} s"))
        except Exception as error:  # whatever it is, the caller gets it as the answer
            asked = Asked(None, f"It could not be asked: {type(error).__name__}: {error}.")
        with self._lock:
            self._pending.pop(name, None)
            if asked.status is None:
                self._silent[name] = asked.trouble
            else:
                self._silent.pop(name, None)
        pending.future.set_result(asked)

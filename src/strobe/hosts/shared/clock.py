"""The clock of host code: the one place that asks the operating system for the time.

Whoever steps a machine is given a `Clock`, so that a test can control the time. Code that steps no machine, such as a
lease or a handshake, uses `SYSTEM`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from strobe.store.times import utc_text

__all__ = ["SYSTEM", "Clock", "utc_now"]


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds that never go back. Only differences mean something."""
        ...

    def time(self) -> float:
        """Seconds since 1970, as the machine has them: they may jump."""
        ...

    def sleep(self, seconds: float) -> None: ...

    def timer(self, seconds: float, act: Callable[[], None]) -> None:
        """Call `act` later, once, in another thread. It may come when nobody waits for it any more, and must do no harm
        then."""
        ...


class _System:
    def monotonic(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def timer(self, seconds: float, act: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, act)
        timer.daemon = True
        timer.start()


SYSTEM: Final[Clock] = _System()


def utc_now(clock: Clock = SYSTEM) -> str:
    """The time as manifests and job records have it."""
    return utc_text(clock.time())

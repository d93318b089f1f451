"""A clock that a test moves."""

from __future__ import annotations

from collections.abc import Callable


class HeldClock:
    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def timer(self, seconds: float, act: Callable[[], None]) -> None:
        self._timers.append((self.now + seconds, act))

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [act for at, act in self._timers if at <= self.now]
        self._timers = [(at, act) for at, act in self._timers if at > self.now]
        for act in due:
            act()

"""A process's timers, by name. They are part of its state: a timer that has run out and whose handler has not run still
counts as set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strobe.hosts.live.wire.control import TimerState
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId

__all__ = ["Timers"]

_RETRY = 0.005  # seconds; a timer that must wait asks again


class _Timer:
    __slots__ = ("due", "handle", "period")

    def __init__(self, due: float, period: float | None, handle: asyncio.TimerHandle) -> None:
        self.due = due
        self.period = period
        self.handle = handle


class Timers:
    def __init__(self, node: NodeId, ring: Callable[[str], None], must_wait: Callable[[], bool]) -> None:
        """`ring` is called when a timer has run out; it answers, now or later, with `take`."""
        self._node = node
        self._ring = ring
        self._must_wait = must_wait
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, _Timer] = {}

    def set(self, name: str, seconds: float, period: float | None) -> None:
        if not seconds >= 0 or not (period is None or period > 0):
            raise Misuse(f"{self._node}: timer {name!r} cannot run out in {seconds} s.", next="Give a time above 0.")
        self.cancel(name)
        due = self._loop.time() + seconds
        self._timers[name] = _Timer(due, period, self._loop.call_at(due, self._due, name))

    def cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.handle.cancel()

    def stop(self) -> None:
        for name in list(self._timers):
            self.cancel(name)

    def take(self, name: str) -> bool:
        """Whether the timer is still set; if so it is acted upon now, and set again if it is periodic."""
        timer = self._timers.get(name)
        if timer is None:
            return False
        if timer.period is None:
            del self._timers[name]
        else:
            timer.due = max(timer.due + timer.period, self._loop.time())
            timer.handle = self._loop.call_at(timer.due, self._due, name)
        return True

    def __len__(self) -> int:
        return len(self._timers)

    def states(self) -> list[TimerState]:
        now = self._loop.time()
        return [TimerState(name, max(0.0, t.due - now), t.period) for name, t in self._timers.items()]

    def _due(self, name: str) -> None:
        if self._must_wait():
            self._timers[name].handle = self._loop.call_later(_RETRY, self._due, name)
        else:
            self._ring(name)

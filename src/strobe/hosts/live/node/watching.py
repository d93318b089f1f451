"""A node's side of breakpoints: judge conditions after each step, and hold the life where one holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from strobe.hosts.live.api.conditions import Condition, Unevaluable, read_condition
from strobe.hosts.live.api.diffusing import Detecting
from strobe.hosts.live.api.process import Process
from strobe.hosts.live.node.life import Life
from strobe.hosts.live.wire.control import BreakHit, BreakRefused, Control

__all__ = ["Watch"]


class Watch:
    """The breakpoints of one life."""

    def __init__(self, life: Life, texts: Mapping[int, str], say: Callable[[Control], None]) -> None:
        self._life = life
        self._say = say
        self._conditions = {number: self._read(text) for number, text in texts.items()}
        self._held_for = 0
        self._watch()

    def set(self, number: int, text: str) -> None:
        if number in self._conditions:
            return  # it was already in the orders of this life
        condition = self._read(text)
        try:
            condition.check(_own(self._life.process))
        except Unevaluable as error:
            self._say(BreakRefused(number, str(error)))
            return
        self._conditions[number] = condition
        self._watch()
        self._life.look_soon()

    def clear(self, number: int) -> None:
        self._conditions.pop(number, None)
        self._watch()
        self.go_on(number)

    def go_on(self, number: int) -> None:
        """The snapshot that this breakpoint waits for has been recorded, or will not be."""
        if number and number == self._held_for:
            self._held_for = 0
            self._life.release()

    def _watch(self) -> None:
        self._life.after_step = self._look if self._conditions else None

    def _look(self, process: Process) -> None:
        """After a step: where a condition holds, this is the state that the snapshot is to show."""
        for number, condition in list(self._conditions.items()):
            try:
                holds = condition.holds(_own(process))
            except Unevaluable as error:
                del self._conditions[number]
                self._say(BreakRefused(number, str(error)))
                continue
            if holds:
                del self._conditions[number]
                self._held_for = number
                self._life.hold()
                self._say(BreakHit(self._life.order.incarnation, number))
                break
        self._watch()

    def _read(self, text: str) -> Condition:
        return read_condition(text, self._life.graph.nodes)


def _own(process: Process) -> Process:
    """The user's process, without the wrapper that detects termination."""
    return process.inner if isinstance(process, Detecting) else process

"""Agents without a thread of their own: what is put into a stage's inbox is taken at once, by whoever puts it there. So
a test decides what happens when, and does the same every time."""

from __future__ import annotations

from collections import deque
from typing import Any

from strobe.hosts.spark.stage.agent import StageAgent
from strobe.hosts.spark.stage.inbox import BatchArrived, Closed, Item, Question, StopAsked
from strobe.hosts.spark.stage.life import StageLife
from strobe.model.ids import SnapshotId


class PlayedLife(StageLife):
    def __init__(self, *args: Any, **named: Any) -> None:
        self._items: deque[Item] = deque()
        self._busy = False
        super().__init__(*args, **named)

    def start(self) -> None:
        pass

    def stop(self, patience: float | None) -> None:
        self.live = False
        self.put(StopAsked())

    def put(self, item: Item) -> None:
        if self._ended and self._running is None:
            if isinstance(item, Question):
                item.refuse(Closed("it is over"))
            return
        self._items.append(item)
        if self._busy:
            return
        self._busy = True
        try:
            while self._items:
                self.take(self._items.popleft())
                self.go_on()
        except BaseException:
            self._items.clear()
            raise
        finally:
            self._busy = False

    def _look(self) -> None:
        self.at_rest()

    def _cannot_go_on(self, error: Exception) -> None:
        raise error


class PlayedAgent(StageAgent):
    life_class: type[PlayedLife] = PlayedLife

    def _new_life(self, *args: Any, **named: Any) -> PlayedLife:
        return self.life_class(self.stage, *args, **named, broken=self.broken)

    def arrive(self, batch: int) -> BatchArrived:
        """As `begin_batch`, for whoever cannot wait: a batch that may begin is answered."""
        arrived = BatchArrived(batch)
        self.life.put(arrived)
        return arrived

    @property
    def life(self) -> PlayedLife:
        assert isinstance(self._life, PlayedLife)
        return self._life

    @property
    def registered(self) -> bool:
        """Whether Spark's questions are answered: the coordinator knows of this life."""
        return self.life._recorder.registered

    @property
    def aligning(self) -> SnapshotId | None:
        machine = self.life._recorder._machine
        return None if machine is None else machine.aligning


class ScheduledLife(PlayedLife):
    """A stage that idles looks at its channels only when the schedule says so."""

    _scheduled = False

    def _look(self) -> None:
        if self._scheduled:
            super()._look()

    def look(self) -> None:
        """What its own thread would do: look at the stage if there is a message."""
        self._scheduled = True
        try:
            self.go_on()
        finally:
            self._scheduled = False


class ScheduledAgent(PlayedAgent):
    life_class = ScheduledLife

    def look(self) -> None:
        assert isinstance(self._life, ScheduledLife)
        self._life.look()

"""The parts of a job without Spark that a schedule moves: uploads that wait to end, a query between two steps, and an
account of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from strobe.hosts.spark.snapshot.messages import StagePart
from strobe.hosts.spark.snapshot.recording import Recorded, Recording
from strobe.model.errors import StrobeError
from strobe.store.manifest import NOTHING
from tests.support.spark.agent_world import Immediate, Submitted
from tests.support.spark.played_agents import ScheduledAgent


class Killed(BaseException):
    """The process is gone."""


class Delayed(Immediate):
    """Uploads that are durable when the schedule says so, in any order."""

    def __init__(self) -> None:
        self.waiting: list[Submitted] = []

    def submit(self, stage: Recorded, recording: Recording, done: Callable[[StagePart | StrobeError], None]) -> None:
        self.waiting.append((stage, recording, done))

    def finish(self, index: int) -> None:
        super().submit(*self.waiting.pop(index))


@dataclass
class Query:
    """A stage that runs, in one life."""

    agent: ScheduledAgent
    steps: Iterator[None]
    in_batch: bool = False  # Spark's thread holds the stage


@dataclass
class Account:
    """What a stage had read of each input, and written, after each batch: rows."""

    read: dict[int, dict[str, int]] = field(default_factory=dict)
    written: dict[int, int] = field(default_factory=lambda: {NOTHING: 0})

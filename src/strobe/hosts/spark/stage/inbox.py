"""What can come into a stage's inbox, and the inbox itself.

Everything that happens to a stage is put here, by whichever thread it happens in, and is taken out by the stage's own
thread, one after the other. Who needs an answer waits for it: a `Question` is answered once, perhaps long after it was
taken (a batch that must wait, a stop that waits for a commit). A closed inbox answers nothing: a new question fails at
once, with `Closed`.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from strobe.hosts.spark.snapshot.messages import StagePart, ToAgent
from strobe.hosts.spark.snapshot.recording import Vote
from strobe.model.errors import Failed, StrobeError
from strobe.model.ids import NodeId, SnapshotId
from strobe.protocol.events import AlignmentTimedOut

__all__ = [
    "BatchArrived", "BatchComputed", "BatchEnded", "Closed", "HaltAsked", "IdleAsked", "Inbox", "InputGrew", "Item",
    "LookAsked", "PlanAsked", "Question", "SinkVoted", "StopAsked", "Uploaded",
]  # fmt: skip

T = TypeVar("T")


class Closed(Failed):
    """The inbox is closed: its thread has ended."""


@dataclass(frozen=True, eq=False, slots=True)
class Question(Generic[T]):
    """Somebody waits for an answer."""

    _answer: Future[T] = field(default_factory=Future, init=False, repr=False)

    def answer(self, value: T) -> None:
        if not self._answer.done():
            self._answer.set_result(value)

    def refuse(self, error: BaseException) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)

    @property
    def answered(self) -> bool:
        return self._answer.done()

    def wait(self, timeout: float | None = None) -> T:
        """The answer, or what was raised instead; TimeoutError if it does not come in time."""
        return self._answer.result(timeout)


# ── from Spark ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False, slots=True)
class PlanAsked(Question[int]):
    """Spark plans a batch: how far may this reader read, which stands at `start`?"""

    reader: str
    producer: NodeId
    start: int


@dataclass(frozen=True, eq=False, slots=True)
class BatchArrived(Question[None]):
    """Spark hands over a batch, and has committed the one before. Answered when the batch may begin."""

    batch: int


@dataclass(frozen=True, eq=False, slots=True)
class BatchComputed(Question[None]):
    """The rows of the batch that runs are about to be put into the stage's channel. Answered when they may."""

    batch: int


@dataclass(frozen=True, slots=True)
class BatchEnded:
    batch: int
    failed: bool


# ── from a producer of what the stage reads ─────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class InputGrew:
    """A channel that the stage reads has a new commit: rows, a barrier or the end."""


# ── from the stage's runner ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False, slots=True)
class HaltAsked(Question[None]):
    """Admit nothing more. Answered when the last batch is committed."""


@dataclass(frozen=True, slots=True)
class StopAsked:
    """This life of the stage is over."""


@dataclass(frozen=True, eq=False, slots=True)
class IdleAsked(Question[bool]):
    """Is there nothing left to read, and no batch under way or due?"""


@dataclass(frozen=True, eq=False, slots=True)
class LookAsked(Question[bool]):
    """Look at the channels, and do what is due, if the stage is at rest. Was it?"""


# ── from what works for the stage in the background ─────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Uploaded:
    """The stage's files of a snapshot are durable, or cannot be made so."""

    snapshot: SnapshotId
    result: StagePart | StrobeError


@dataclass(frozen=True, slots=True)
class SinkVoted:
    """A sink that delivers on snapshot has prepared, or refuses to."""

    snapshot: SnapshotId
    sink: str
    vote: Vote | StrobeError


Item: TypeAlias = (
    PlanAsked | BatchArrived | BatchComputed | BatchEnded | InputGrew | HaltAsked | StopAsked | IdleAsked | LookAsked
    | Uploaded | SinkVoted | AlignmentTimedOut | ToAgent
)  # fmt: skip


class Inbox:
    """Any thread puts, one takes."""

    def __init__(self, closed: str) -> None:
        """`closed`: the error message for questions that come after the inbox was closed."""
        self._queue: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._message = closed
        self._lock = threading.Lock()
        self._closed = False

    def put(self, item: Item) -> None:
        with self._lock:
            if not self._closed:
                self._queue.put(item)
                return
        self._refuse(item)

    def get(self, timeout: float | None) -> Item | None:
        """The next item; None if nothing came in time."""
        try:
            return self._queue.get(timeout=timeout)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Refuse what is left, and whatever still comes."""
        with self._lock:
            self._closed = True
        while (item := self.get(0)) is not None:
            self._refuse(item)

    def _refuse(self, item: Item) -> None:
        if isinstance(item, Question):
            item.refuse(Closed(self._message))

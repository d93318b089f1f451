"""The pause between two looks at a source grows while the source has nothing new.

`stage.asking` has Spark look at a source of its own ten times a second. A look costs two to three milliseconds of
processor time (a directory is listed, Kafka is asked over the network), which an idle job pays all day. So the pause
is a share of the time for which nothing has come, up to a second, and short again with the first batch: the first row
after a quiet time waits a twentieth of that time at most, and never more than a second; a stream with rows every two
seconds never notices.

Spark reads its `pollingDelay` once, when a query starts, and has no way to change it. It keeps it in a field of the
query's execution and reads that field before each pause; so the field is set. Where a Spark has no such field, the
pause stays as it was.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, Final

from strobe.hosts.shared.clock import Clock

__all__ = ["LONGEST", "SHARE", "SourcePause", "pause_after"]

_log = logging.getLogger("strobe.stage")
LONGEST: Final = 1000  # milliseconds
SHARE: Final = 20
_CLASS: Final = "StreamExecution"
_FIELD: Final = "pollingDelayMs"


def pause_after(quiet: float, shortest: int) -> int:
    """Milliseconds, after so many seconds without a batch: doubled step by step, so that it is rarely set."""
    pause, fair = shortest, quiet * 1000 / SHARE
    while pause * 2 <= min(fair, LONGEST):
        pause *= 2
    return LONGEST if fair >= LONGEST else pause


class SourcePause:
    """How often Spark looks at the sources, in one life of a stage's query. `look` is called now and then;
    `begin_batch` by each batch."""

    def __init__(self, uid: str, clock: Clock) -> None:
        self._uid = uid
        self._clock = clock
        self._lock = threading.Lock()
        self._execution: Any = None
        self._shortest = self._now = 0
        self._since = 0.0

    def begin_life(self, query: Any, shortest: int | None) -> None:
        """`query` is Spark's, in the JVM; `shortest` its pause in milliseconds, None if that is not ours to change."""
        with self._lock:
            self._execution = None if shortest is None else query.streamingQuery()
            self._shortest = self._now = shortest or 0
            self._since = self._clock.monotonic()

    def begin_batch(self) -> None:
        with self._lock:
            self._since = self._clock.monotonic()
            self._set(self._shortest)

    def look(self) -> None:
        with self._lock:
            if self._execution is not None:
                self._set(pause_after(self._clock.monotonic() - self._since, self._shortest))

    def _set(self, milliseconds: int) -> None:
        if self._execution is None or milliseconds == self._now:
            return
        try:
            kind = self._execution.getClass()
            while kind.getSimpleName() != _CLASS:
                kind = kind.getSuperclass()
            field = kind.getDeclaredField(_FIELD)
            field.setAccessible(True)
            field.setLong(self._execution, milliseconds)
            self._now = milliseconds
        except Exception as error:  # another Spark, or a JVM that is going away
            _log.debug("%s: its pause stays as it is: %s", self._uid, error)
            self._execution = None

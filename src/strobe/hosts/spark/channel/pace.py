"""How many rows a stage takes at once, so that its batches last about as long as they should.

A snapshot falls between two batches, and those that cannot be taken as before the running batch (aligned ones,
savepoints, stages whose sinks deliver on snapshot) wait for its end. Without a limit a stage with a backlog reads all
of it in one batch: none of these completes meanwhile, and readers of its tables see nothing new.

*What is learnt.* A batch costs something by itself and something for each row: seconds = F + C · rows. Both come from
the last batches, by the line that fits them best, the newest ones counting most. As long as all batches are alike, the
two cannot be told apart: then the last known F counts, and if there is none, a larger batch is tried after a while.
Taking all of the time for the cost of rows would be a trap: where F is large, each batch would be made smaller than the
one before, and the stage would read ever less in the same time.

*What follows.* A batch gets the rows that fill its time. That time is longer than asked for if F is a large part of it:
smaller batches would make checkpoints faster, and the stage slower. The next batch is never more than ten times as
large as those that are known.

*The start.* Nothing is known of a stage that has run no batch: it gets one commit of each channel.

*Quiet times.* A batch that had far fewer rows than it could have had, because no more were waiting, and that took less
than its time, tells nothing: it must not replace what is known of larger ones.

*Something was wrong.* A first batch waits for classes to be loaded, another one for a sink that does not answer. If a
batch takes less than a third of what was to be expected, all that was known is forgotten: it would keep the stage slow.

A pace outlives the restarts of its stage. It decides how much is admitted, never what: commits stay whole, and a batch
that was planned before a crash is run again as it was planned, because Spark has logged where it ends.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from strobe.model.errors import Misuse

__all__ = ["Pace"]

_KEPT: Final = 8  # batches
_WEIGHT: Final = 0.6  # of a batch against the one that came after it
_ALIKE: Final = 1.5  # batches that differ by less tell nothing about the cost of a row
_GROWTH: Final = 10
_OWN_COSTS: Final = 8  # times a batch's own cost: what it lasts at least,
_LONGER: Final = 10  # but at most so many times what it should last
_SHORTEST: Final = 0.001  # seconds: no batch takes less


@dataclass(frozen=True, slots=True)
class _Batch:
    rows: int
    seconds: float


class Pace:
    def __init__(self, seconds: float) -> None:
        """`seconds`: how long a batch should last."""
        if seconds <= 0:
            raise Misuse(f"A batch cannot last {seconds!r} seconds.")
        self.seconds = seconds
        self._batches: deque[_Batch] = deque(maxlen=_KEPT)
        self._own: float | None = None  # what a batch costs besides its rows
        self._line = (0.0, 0.0)  # what a batch is thought to cost by itself, and for each row
        self._rows = 0.0

    @property
    def rows(self) -> float:
        """How many the next batch should have. Commits are whole, so it has one at least."""
        return self._rows

    def took(self, rows: int, seconds: float) -> None:
        """A batch of so many rows took so long."""
        if rows <= 0 or (rows < self._rows / 4 and seconds < self.seconds):
            return
        if seconds < (self._line[0] + self._line[1] * rows) / 3:
            self._batches.clear()
        self._batches.append(_Batch(rows, max(seconds, _SHORTEST)))
        self._rows = self._fit()

    def _fit(self) -> float:
        newest, sizes = self._batches[-1], [batch.rows for batch in self._batches]
        if max(sizes) < _ALIKE * min(sizes):
            if self._own is None and len(sizes) == _KEPT:
                return 2.0 * max(sizes)
            own = min(self._own or 0.0, newest.seconds / 2)
            each = (newest.seconds - own) / newest.rows
        else:
            own, each = self._regression()
            if each <= 0:
                return 2.0 * max(sizes)  # more rows take no more time
            self._own = own
        self._line = own, each
        longer = min(_OWN_COSTS * own, _LONGER * self.seconds)
        return min((max(self.seconds, longer, 2 * own) - own) / each, _GROWTH * max(sizes))

    def _regression(self) -> tuple[float, float]:
        """What a batch costs by itself, and for each row."""
        weights = [_WEIGHT**age for age in range(len(self._batches) - 1, -1, -1)]
        known = list(zip(weights, self._batches, strict=True))
        total = sum(weights)
        rows = sum(w * b.rows for w, b in known) / total
        seconds = sum(w * b.seconds for w, b in known) / total
        spread = sum(w * (b.rows - rows) ** 2 for w, b in known)
        each = sum(w * (b.rows - rows) * (b.seconds - seconds) for w, b in known) / spread
        own = seconds - each * rows
        return (own, each) if own >= 0 else (0.0, seconds / rows)

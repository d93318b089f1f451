"""Sorted Parquet files, read forwards only: what a walk through a run holds of it is a batch for each node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow.parquet as pq

__all__ = ["Intervals", "Messages"]

Numbers: TypeAlias = np.ndarray[Any, Any]

_BATCH: Final = 65_536  # rows
_FEW: Final = 24  # rows that a loop handles faster than an array operation


def _batches(files: list[Path], columns: list[str]) -> Iterator[tuple[Numbers, ...]]:
    for file in files:
        with pq.ParquetFile(file) as opened:
            for batch in opened.iter_batches(batch_size=_BATCH, columns=columns):
                yield tuple(batch.column(name).to_numpy(zero_copy_only=False) for name in columns)


class Messages:
    """What a node has received, in the order of its steps: for each message the sender, and the step that sent it."""

    def __init__(self, files: list[Path]) -> None:
        self._batches = _batches(files, ["step", "sender", "sent"])
        self._step = self._sender = self._sent = np.empty(0, np.int64)
        self._at = 0
        self.read = 0

    def upto(self, step: int, needs: Numbers) -> None:
        """Raise `needs`, by sender, to what the steps up to this one have received since the last call."""
        while self._fill():
            end = int(np.searchsorted(self._step, step, "right"))
            if end <= self._at:
                return
            senders, sent = self._sender[self._at : end], self._sent[self._at : end]
            if end - self._at <= _FEW:
                for sender, number in zip(senders.tolist(), sent.tolist(), strict=True):
                    if number > needs[sender]:
                        needs[sender] = number
            else:
                np.maximum.at(needs, senders, sent)
            self.read += end - self._at
            self._at = end
            if end < len(self._step):
                return

    def _fill(self) -> bool:
        while self._at >= len(self._step):
            batch = next(self._batches, None)
            if batch is None:
                return False
            self._step, self._sender, self._sent = batch
            self._at = 0
        return True


class Intervals:
    """The stretches of states in which a node's condition holds, in order."""

    def __init__(self, files: list[Path]) -> None:
        self._batches = _batches(files, ["first", "last"])
        self._first = self._last = np.empty(0, np.int64)

    def at_or_after(self, state: int) -> int | None:
        """The first state from here on in which it holds. Never asked for an earlier one than before."""
        while not len(self._last) or self._last[-1] < state:
            batch = next(self._batches, None)
            if batch is None:
                return None
            self._first, self._last = batch
        index = int(np.searchsorted(self._last, state, "left"))
        return max(state, int(self._first[index]))

"""Where the records in a run of changes begin. A record says only how long it is, so each leads to the next.

Following a million of them one by one takes a second. So many walkers follow them at once; a step of all walkers is one
array operation. The first starts at the beginning, the others start further on, where the bytes look like a record.
Such a guess is accepted when the walker behind it arrives exactly there: since the first walker started at a record,
this is one, too. A wrong guess is skipped, and costs only time.
"""

from __future__ import annotations

import contextlib
import struct
from typing import Any, Final

import numpy as np

from strobe.look.gather import Bytes, Positions, number_at

__all__ = ["record_starts"]

_SAMPLE: Final = 128  # records that are followed one by one; short runs have no more
_EACH: Final = 32  # records for each walker
_WALKERS: Final = 4096
_WIDEST: Final = 2048  # bytes that are looked through for the start of a record
_ROUNDS: Final = 8
_FEW: Final = 48  # walkers; fewer are faster one after the other
_INT: Final = struct.Struct(">i")
_ENDED, _LOST = -1, -2

Steps = tuple[Positions, "np.ndarray[Any, np.dtype[np.bool_]]", "np.ndarray[Any, np.dtype[np.bool_]]"]


def record_starts(data: Bytes, at: int, *, typed: bool) -> Positions:
    """Every record of `data` from `at` to the mark at their end: a kind (if `typed`), the key with its length, the
    value with its length. ValueError if one leads out of the data."""
    if at > len(data):
        raise ValueError("a change leads out of its file")
    walk = _Walk(data, typed)
    first, at = walk.one_by_one(at, most=_SAMPLE)
    if at == _ENDED:
        return first
    found = [first]
    guesses = walk.guesses(first, at)
    for _ in range(_ROUNDS):
        starts = np.concatenate((np.array([at]), guesses))
        counts, ends, records = walk.together(starts)
        reached = np.flatnonzero(ends[:-1] != starts[1:])
        last = int(reached[0]) if len(reached) else len(starts) - 1
        found.append(records[: int(counts[: last + 1].sum())])
        at = int(ends[last])
        if at == _ENDED:
            return np.concatenate(found)
        if at == _LOST:
            raise ValueError("a change leads out of its file")
        guesses = guesses[guesses > at]
    rest, _ = walk.one_by_one(at)
    return np.concatenate((*found, rest))


class _Walk:
    def __init__(self, data: Bytes, typed: bool) -> None:
        self._data, self._typed, self._size = data, typed, len(data)
        self._head = 1 if typed else 0
        self._ints = number_at(data, ">i4")

    def one_by_one(self, at: int, until: int | None = None, most: int | None = None) -> tuple[Positions, int]:
        """The records before `until`, at most so many, and where the next one begins."""
        data, head, size, typed, unpack = self._data.data, self._head, self._size, self._typed, _INT.unpack_from
        until, most = size + 1 if until is None else until, size if most is None else most
        found: list[int] = []
        try:
            while at < until and len(found) < most:
                if typed and data[at] == 0:
                    return np.array(found, np.int64), _ENDED
                (key,) = unpack(data, at + head)
                if key < 0:
                    if key == -1 and not typed:
                        return np.array(found, np.int64), _ENDED
                    raise ValueError("a change leads out of its file")
                middle = at + head + 4 + key
                (value,) = unpack(data, middle)
                after = middle + 4 + value if value > 0 else middle + 4
                if after > size:
                    raise ValueError("a change leads out of its file")
                found.append(at)
                at = after
        except (struct.error, IndexError) as error:
            raise ValueError("a change leads out of its file") from error
        return np.array(found, np.int64), at

    def step(self, places: Positions) -> Steps:
        """Where the next records begin; which of these are the mark at the end; which are not records at all."""
        head, last = self._head, self._size - 4
        ended = np.zeros(len(places), np.bool_)
        if self._typed:
            ended = (places < self._size) & (self._data[np.minimum(places, self._size - 1)] == 0)
        lost = (places + head > last) & ~ended
        key = self._ints[np.minimum(places + head, last)].astype(np.int64)
        if not self._typed:
            ended = (key == -1) & ~lost
        middle = places + (head + 4) + key
        lost |= (key < 0) | (middle > last)
        middle[lost | ended] = 0
        after = middle + 4 + np.maximum(self._ints[middle], 0)
        return after, ended, (lost | (after > self._size)) & ~ended

    def guesses(self, sample: Positions, at: int) -> Positions:
        """Places beyond `at` that look like the first one of a record, far apart."""
        head, ints = self._head, self._ints
        mean = max((at - int(sample[0])) // len(sample), 1)
        count = min((self._size - at) // (mean * _EACH), _WALKERS)
        if count < 2:
            return np.zeros(0, np.int64)
        longest = int(np.diff(sample, append=at).max())
        width = min(2 * longest, (self._size - at) // count, _WIDEST)
        marks = at + np.arange(1, count) * ((self._size - at) // count)
        places = (marks[:, None] + np.arange(width)).reshape(-1)
        places = places[places + head + 4 <= self._size]
        lengths = sorted(set(ints[sample + head].tolist()))
        there = ints[places + head]
        if len(lengths) <= 8:
            likely = np.zeros(len(places), np.bool_)
            for length in lengths:
                likely |= there == length
        else:
            likely = (there >= lengths[0]) & (there <= lengths[-1])
        if self._typed:
            kind = self._data[places]
            likely &= (kind == 0x01) | (kind == 0x10)
        places = places[likely]
        later = places
        for _ in range(3):
            later, ended, lost = self.step(later)
            good = ~lost & ~ended
            places, later = places[good], later[good]
        # Not `np.unique`: its first call imports a package that takes longer than all of this.
        return places[np.diff(np.searchsorted(marks, places, side="right"), prepend=-1) > 0]

    def together(self, starts: Positions) -> tuple[Positions, Positions, Positions]:
        """Walk from each start to the next one or beyond. Returns how many records each walker has found, where it
        ended, and all records, in the order of the walkers."""
        limits = np.append(starts[1:], self._size + 1)
        ends = np.full(len(starts), _LOST, np.int64)
        counts = np.zeros(len(starts), np.int64)
        steps: list[tuple[Positions, Positions]] = []
        walkers, places = np.arange(len(starts)), starts
        while len(walkers) > _FEW:
            after, ended, lost = self.step(places)
            on = ~(ended | lost)
            steps.append((walkers[on], places[on]))
            counts[walkers[on]] += 1
            ends[walkers[ended]] = _ENDED
            walkers, after = walkers[on], after[on]
            arrived = after >= limits[walkers]
            ends[walkers[arrived]] = after[arrived]
            walkers, places = walkers[~arrived], after[~arrived]
        singles: list[tuple[int, int, Positions]] = []
        for walker, place in zip(walkers.tolist(), places.tolist(), strict=True):
            with contextlib.suppress(ValueError):
                alone, ends[walker] = self.one_by_one(place, int(limits[walker]))
                singles.append((walker, int(counts[walker]), alone))
                counts[walker] += len(alone)
        begins = np.cumsum(counts) - counts
        records = np.empty(int(counts.sum()), np.int64)
        for number, (who, where) in enumerate(steps):
            records[begins[who] + number] = where
        for walker, before, alone in singles:
            at = int(begins[walker]) + before
            records[at : at + len(alone)] = alone
        return counts, ends, records

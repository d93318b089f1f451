"""Which rows have the same key, for many keys at once.

Keys are compared by a hash of 64 bits first. A hash alone never decides: keys whose hashes agree are compared byte by
byte, so somebody who can make hashes collide makes this slow, but never wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import numpy as np

from strobe.look.gather import Bytes, Flags, Positions, Rows, numbers

__all__ = ["Hashes", "hashes_of", "last_of_each", "rows_with"]

Hashes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint64]]"

_ODD: Final = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
_ROOM: Final = 4  # places for each key: in most rounds few keys meet another one in theirs


def hashes_of(keys: Rows) -> Hashes:
    found = np.zeros(len(keys), np.uint64)
    for which, size in _by_length(keys):
        mixed = np.full(len(which) if which is not None else len(keys), size, np.uint64)
        starts = keys.starts if which is None else keys.starts[which]
        for word in _words(keys.data, starts, size):
            mixed = (mixed ^ word) * np.uint64(_ODD[0])
            mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(_ODD[1])
        found[slice(None) if which is None else which] = mixed
    return found


def last_of_each(keys: Rows) -> Positions:
    """The rows that no later row with the same key follows, in their order."""
    count = len(keys)
    hashes = hashes_of(keys)
    keep = np.ones(count, np.bool_)
    open_: Positions = np.arange(count)
    for odd in _ODD:
        # Rows of one key have one place, and the last of all rows that have it stays there.
        shift = np.uint64(64 - max(int(len(open_) * _ROOM).bit_length(), 4))
        place = ((hashes[open_] * np.uint64(odd)) >> shift).astype(np.int64)
        table = np.empty(1 << (64 - int(shift)), np.int64)
        table[place] = open_
        stays = table[place]
        lost = stays != open_
        rows, others = open_[lost], stays[lost]
        same = _same(keys, rows, keys, others, hashes[rows] == hashes[others])
        if bool((others[same] < rows[same]).any()):
            break
        keep[rows[same]] = False
        open_ = rows[~same]
        if not len(open_):
            return np.flatnonzero(keep)
    last: dict[bytes, int] = {}
    for row, key in zip(open_.tolist(), keys.take(open_).to_list(), strict=True):
        if key in last:
            keep[last[key]] = False
        last[key] = row
    return np.flatnonzero(keep)


def rows_with(keys: Callable[[Positions], Rows], hashes: Hashes, wanted: Rows) -> tuple[Positions, int]:
    """The rows whose keys are among the wanted ones, and how many others have the hash of one of them. `keys` gives the
    keys of some rows, `hashes` those of all."""
    if not len(wanted):
        return np.zeros(0, np.int64), 0
    theirs = hashes_of(wanted)
    shift = np.uint64(64 - min(max((len(wanted) * 64).bit_length(), 8), 26))
    marked = np.zeros(1 << (64 - int(shift)), np.bool_)
    marked[theirs >> shift] = True
    maybe: Positions = np.flatnonzero(marked[hashes >> shift])
    order = np.argsort(theirs)
    at = np.minimum(np.searchsorted(theirs[order], hashes[maybe]), len(wanted) - 1)
    agree = theirs[order[at]] == hashes[maybe]
    maybe, others = maybe[agree], order[at[agree]]
    mine = keys(maybe)
    same = _same(mine, np.arange(len(maybe)), wanted, others, np.ones(len(maybe), np.bool_))
    rest = np.flatnonzero(~same)
    if len(rest):
        known = set(wanted.to_list())
        same[rest] = [key in known for key in mine.take(rest).to_list()]
    return maybe[same], len(maybe) - int(same.sum())


def _same(mine: Rows, these: Positions, others: Rows, those: Positions, maybe: Flags) -> Flags:
    """Where `maybe` is set: whether the two rows have the same key."""
    same: Flags = maybe & (mine.ends[these] - mine.starts[these] == others.ends[those] - others.starts[those])
    rows = np.flatnonzero(same)
    left, right = mine.take(these[rows]), others.take(those[rows])
    for which, size in _by_length(left):
        part = slice(None) if which is None else which
        equal = np.ones(len(left.starts[part]), np.bool_)
        for one, other in zip(
            _words(left.data, left.starts[part], size), _words(right.data, right.starts[part], size), strict=True
        ):
            equal &= one == other
        same[rows[part]] = equal
    return same


def _by_length(keys: Rows) -> Iterator[tuple[Positions | None, int]]:
    """Rows of each length; None stands for all of them."""
    sizes = keys.ends - keys.starts
    if not len(sizes):
        return
    if int(sizes.min()) == int(sizes.max()):
        yield None, int(sizes[0])
        return
    order = np.argsort(sizes, kind="stable")
    begins = np.flatnonzero(np.diff(sizes[order], prepend=-1)).tolist()
    for begin, end in itertools.pairwise((*begins, len(order))):
        yield order[begin:end], int(sizes[order[begin]])


def _words(data: Bytes, starts: Positions, size: int) -> Iterator[Hashes]:
    """All bytes of keys of one length, in words of eight; the last two may overlap."""
    if size < 8:
        for at in range(size):
            yield numbers(data, starts + at, "u1").astype(np.uint64)
        return
    for at in (*range(0, size - 8, 8), size - 8):
        yield numbers(data, starts + at, "<u8")

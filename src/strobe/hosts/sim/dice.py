"""Random numbers, in integers only: the same seed gives the same numbers on every machine and Python version.

Only `getrandbits` of the Mersenne twister is used; everything else (ranges, picks, shuffles) is arithmetic on those
bits. The library's own `choice`, `randrange` and the like have changed between versions, and floating point functions
differ between machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

__all__ = ["Dice"]

T = TypeVar("T")


class Dice:
    """`bits(k)` is k random bits; hot loops call it directly."""

    __slots__ = ("bits",)

    def __init__(self, seed: int) -> None:
        self.bits = Random(seed).getrandbits

    def below(self, n: int) -> int:
        """An integer from 0 to n − 1; n is at most 2³²."""
        return self.bits(32) * n >> 32

    def between(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def chance(self, permille: int) -> bool:
        return self.below(1000) < permille

    def pick(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        result = list(items)
        for i in range(len(result) - 1, 0, -1):
            j = self.below(i + 1)
            result[i], result[j] = result[j], result[i]
        return result

"""Look at a sink, or stop it, at any line that it runs.

A sink that is right at the end of each call may still be wrong in the middle: a reader sees half a batch, or a driver
that dies there leaves something that makes the next one fail. Python can call back before each line of chosen files,
so both can be tried without threads and without chance.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any

__all__ = ["Died", "at_each_line", "places"]


class Died(BaseException):
    """Stands for the end of the process: no `except Exception` may catch it."""


def at_each_line(files: Collection[str], do: Callable[[int, str], None], call: Callable[[], Any]) -> Any:
    """Run `call`; before each line of `files` that it runs in this thread, `do(number, place)`."""
    count = 0
    before = sys.gettrace()

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if event == "line":
            number, count = count, count + 1
            sys.settrace(None)
            try:
                do(number, f"{frame.f_code.co_name}, line {frame.f_lineno}")
            finally:
                sys.settrace(trace)
        return local

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        return local if frame.f_code.co_filename in files else None

    sys.settrace(trace)
    try:
        return call()
    finally:
        sys.settrace(before)


def places(lines: int, most: int) -> list[int]:
    """At most `most` of the numbers below `lines`, evenly spread, the first and the last among them."""
    if lines <= most:
        return list(range(lines))
    return sorted({round(i * (lines - 1) / (most - 1)) for i in range(most)})

"""Reading into a buffer that is kept.

For each read of a plain protocol, asyncio asks for 256 KiB of memory and gives nearly all of it back. For a frame of
usual size that takes longer than the read itself. A `Buffered` has one buffer for all reads. It begins small, for there
may be many connections, and grows when a read fills it, for a large frame that comes in many pieces is slow.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Final

__all__ = ["Buffered"]

LEAST: Final = 1 << 14
MOST: Final = 1 << 18


class Buffered(asyncio.BufferedProtocol, ABC):
    """Like `asyncio.Protocol`: what comes, comes to `data_received`."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(LEAST))

    @abstractmethod
    def data_received(self, data: bytes) -> None: ...

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._buffer[:nbytes])
        if nbytes == len(self._buffer) < MOST:
            self._buffer = memoryview(bytearray(4 * nbytes))
        self.data_received(data)

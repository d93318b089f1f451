"""A state, taken at one moment and written without stopping the process for the write.

Theory
------
A small state is encoded on the spot: that takes less than anything else would. A large one is left to a forked child,
which sees memory as it was at the fork, whatever the parent does meanwhile (copy on write), encodes it, writes it into
a pipe and ends. The parent is stopped only for the fork itself. What a child does is bounded on purpose: it closes what
it has inherited, encodes, writes, and leaves by `os._exit`; it runs no handlers, no event loop, no cleanup of the
parent.

Whether a state is large is estimated by walking over at most a few thousand of its parts.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from strobe.hosts.live.api.codec import encode_state
from strobe.hosts.live.wire.control import PIECE
from strobe.hosts.shared.clock import SYSTEM, Clock
from strobe.model.errors import StrobeError

__all__ = ["Captured", "Capturing", "capture", "is_large"]

LARGE: Final = 1 << 20  # bytes, estimated: about what is encoded in the time that a fork takes
_PARTS: Final = 4096


@dataclass(frozen=True, slots=True)
class Captured:
    size: int
    forked: bool
    write_ms: float


class Capturing:
    """A state that is being written. Exactly one of `on_done` and `on_failed` is called, unless it is cancelled."""

    def __init__(
        self,
        on_piece: Callable[[bytes], bool],
        on_done: Callable[[Captured], None],
        on_failed: Callable[[str], None],
        clock: Clock = SYSTEM,
    ) -> None:
        """`on_piece` says whether more may follow at once; if not, `resume` is called later."""
        self._on_piece = on_piece
        self._on_done = on_done
        self._on_failed = on_failed
        self._clock, self._begun = clock, clock.monotonic()
        self._size = 0
        self._child = 0
        self._pipe = -1
        self._status = b""

    def failed(self, reason: str) -> None:
        self._on_failed(reason)

    def inline(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE):
            self._on_piece(data[start : start + PIECE])
        self._size = len(data)
        self._on_done(self._captured(forked=False))

    def fork(self, state: Any, whose: str) -> None:
        try:
            read, write = os.pipe()
        except OSError as error:
            self._on_failed(f"no pipe for its state: {error.strerror}")
            return
        try:
            child = os.fork()
        except OSError as error:
            os.close(read)
            os.close(write)
            self._on_failed(f"no process to write its state: {error.strerror}")
            return
        if child == 0:
            _write_and_leave(state, whose, write)
        os.close(write)
        os.set_blocking(read, False)
        self._child, self._pipe = child, read
        self.resume()

    def pause(self) -> None:
        if self._pipe >= 0:
            asyncio.get_running_loop().remove_reader(self._pipe)

    def resume(self) -> None:
        if self._pipe >= 0:
            asyncio.get_running_loop().add_reader(self._pipe, self._readable)

    def cancel(self) -> None:
        if self._pipe >= 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)
            self._end()

    def _readable(self) -> None:
        try:
            data = os.read(self._pipe, PIECE)
        except BlockingIOError:
            return
        if not data:
            self._finished()
            return
        if not self._status:
            self._status, data = data[:1], data[1:]
        if self._status[:1] == _ERROR:
            self._status += data
        elif data:
            self._size += len(data)
            if not self._on_piece(data):
                self.pause()

    def _finished(self) -> None:
        code = self._end()
        if self._status == _DATA and code == 0:
            self._on_done(self._captured(forked=True))
        elif self._status[:1] == _ERROR:
            self._on_failed(self._status[1:].decode(errors="replace"))
        else:
            self._on_failed(f"the process that wrote the state ended with {code}")

    def _end(self) -> int:
        self.pause()
        os.close(self._pipe)
        self._pipe = -1
        _, status = os.waitpid(self._child, 0)
        return os.waitstatus_to_exitcode(status)

    def _captured(self, *, forked: bool) -> Captured:
        return Captured(self._size, forked, (self._clock.monotonic() - self._begun) * 1000)


def capture(state: Any, whose: str, capturing: Capturing, *, fork_above: int = LARGE) -> None:
    """Takes the state as it is now. When this returns, the process may change it."""
    if is_large(state, fork_above):
        capturing.fork(state, whose)
        return
    try:
        data = encode_state(state, whose)
    except StrobeError as error:
        capturing.failed(str(error))
        return
    capturing.inline(data)


def is_large(state: Any, limit: int = LARGE) -> bool:
    """Whether the state has more than `limit` bytes, by a walk that is cut short: large lists count by their heads."""
    total, todo, seen = 0, [(state, 1.0)], 0
    while todo and total <= limit:
        value, weight = todo.pop()
        seen += 1
        if isinstance(value, str | bytes | bytearray):
            total += int(len(value) * weight)
            continue
        total += int(2 * weight)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = [getattr(value, f.name) for f in dataclasses.fields(value)]
        if isinstance(value, Mapping | list | tuple | set | frozenset) and value:
            count = len(value)
            parts = [*value.items()] if isinstance(value, Mapping) and count <= 16 else None
            heads = parts if parts is not None else _heads(value)
            share = weight * count / len(heads)
            total += int(count * weight)
            if seen < _PARTS:
                todo += ((part, share) for head in heads for part in (head if isinstance(value, Mapping) else (head,)))
    return total > limit


def _heads(value: Any) -> list[Any]:
    each = iter(value.items() if isinstance(value, Mapping) else value)
    return [head for _, head in zip(range(16), each, strict=False)]


_DATA: Final = b"D"
_ERROR: Final = b"E"


def _write_and_leave(state: Any, whose: str, pipe: int) -> None:
    """Everything that the child does."""
    code = 1
    try:
        # A child that kept the sockets would keep the parent's port and connections alive after the parent's death.
        os.closerange(3, pipe)
        os.closerange(pipe + 1, 65536)
        try:
            data = memoryview(_DATA + encode_state(state, whose))
        except StrobeError as error:
            data = memoryview(_ERROR + str(error).encode())
        while data:
            data = data[os.write(pipe, data) :]
        code = 0
    finally:
        os._exit(code)

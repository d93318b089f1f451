"""Tells open pages what has changed, and does nothing while no page is open.

What is watched is read again every half second for as long as somebody watches, once for all who do; while a barrier is
under way, more often. An event goes out when the answer differs from the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from strobe.model.errors import StrobeError
from strobe.model.redaction import redact
from strobe.web.operations import Desk
from strobe.web.views import JobView, Refusal, SystemView

__all__ = ["Events"]

_CALM: Final = 0.5  # seconds between two looks
_LIVELY: Final = 0.15
_SIGN_OF_LIFE: Final = 15.0  # seconds after which a proxy is shown that the connection is alive

_encode: Final = msgspec.json.Encoder().encode


@dataclass(slots=True)
class _Topic:
    read: Callable[[], Any]
    watchers: set[asyncio.Queue[bytes]] = field(default_factory=set)
    task: asyncio.Task[None] | None = None
    last: bytes = b""


class Events:
    """Used in the server's event loop only."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._topics: dict[str, _Topic] = {}

    @property
    def watched(self) -> tuple[str, ...]:
        return tuple(self._topics)

    def reading(self, watch: str) -> Callable[[], Any] | None:
        """How to read what is to be watched; None if there is no such thing."""
        kind, _, name = watch.partition("/")
        if watch == "jobs":
            return self._desk.jobs.jobs
        if kind == "job" and name:
            return lambda: self._desk.jobs.job(name)
        if kind == "system" and name:
            return lambda: self._desk.systems.system(name)
        return None

    async def stream(self, watch: str, read: Callable[[], Any]) -> AsyncIterator[bytes]:
        topic = self._topics.setdefault(watch, _Topic(read))
        queue: asyncio.Queue[bytes] = asyncio.Queue(4)
        topic.watchers.add(queue)
        if topic.task is None:
            topic.task = asyncio.create_task(self._follow(topic))
        elif topic.last:
            queue.put_nowait(topic.last)
        try:
            yield b"retry: 1000\n\n"
            while True:
                try:
                    yield await asyncio.wait_for(queue.get(), _SIGN_OF_LIFE)
                except TimeoutError:
                    yield b": all is well\n\n"
        finally:
            topic.watchers.discard(queue)
            if not topic.watchers:
                self._topics.pop(watch, None)
                if topic.task is not None:
                    topic.task.cancel()

    async def _follow(self, topic: _Topic) -> None:
        before = b""
        while True:
            pause = _CALM
            try:
                seen = await asyncio.to_thread(topic.read)
                if isinstance(seen, JobView | SystemView):
                    pause = _LIVELY if getattr(seen, "under_way", ()) else _CALM
                    body = _encode(msgspec.structs.replace(seen, sampled=0.0))
                else:
                    body = _encode(seen)
                event = b"event: seen\ndata: " + _encode(seen) + b"\n\n"
            except StrobeError as error:
                body = _encode(Refusal(error.what, error.untouched, error.next))
                event = b"event: trouble\ndata: " + body + b"\n\n"
            except OSError as error:
                body = _encode(Refusal(f"The home could not be read: {error}."))
                event = b"event: trouble\ndata: " + body + b"\n\n"
            except Exception as error:  # a job of another version may say anything: pages must not wait in silence
                body = _encode(Refusal(redact(f"It could not be read: {type(error).__name__}: {error}.")))
                event = b"event: trouble\ndata: " + body + b"\n\n"
            if body != before:
                before, topic.last = body, event
                for queue in topic.watchers:
                    if queue.full():  # a slow page skips to the newest answer
                        with contextlib.suppress(asyncio.QueueEmpty):
                            queue.get_nowait()
                    queue.put_nowait(event)
            await asyncio.sleep(pause)

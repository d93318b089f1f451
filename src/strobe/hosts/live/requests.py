"""Snapshots that somebody asked for, and waits for."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from pathlib import Path

from strobe.model.errors import Failed
from strobe.model.ids import NodeId, SnapshotId

__all__ = ["Request", "Requests", "ignore_outcome"]


@dataclass(frozen=True)
class Request:
    """Where the snapshot starts (everywhere, if nowhere is named), where it goes, and the breakpoint that wants it."""

    outcome: asyncio.Future[SnapshotId] | None = None
    initiators: tuple[NodeId, ...] = ()
    directory: Path | None = None
    breakpoint: int = 0


_NOBODY = Request()


class Requests:
    def __init__(self) -> None:
        self._open: dict[str, Request] = {}
        self._numbers = itertools.count(1)

    def add(
        self, initiators: tuple[NodeId, ...], directory: Path | None, breakpoint: int
    ) -> tuple[str, asyncio.Future[SnapshotId]]:
        """The request's name, and what comes of it."""
        outcome: asyncio.Future[SnapshotId] = asyncio.get_running_loop().create_future()
        name = f"r{next(self._numbers)}"
        self._open[name] = Request(outcome, initiators, directory, breakpoint)
        return name, outcome

    def of(self, name: str | None) -> Request:
        """A snapshot that nobody asked for is one of the periodic ones."""
        return _NOBODY if name is None else self._open.get(name, _NOBODY)

    def stop(self) -> None:
        for name in list(self._open):
            self.reply(name, None, "the system was stopped")

    def reply(self, name: str, snapshot: SnapshotId | None, failure: str | None) -> None:
        request = self._open.pop(name, None)
        if request is None or request.outcome is None or request.outcome.done():
            return
        if failure is None and snapshot is not None:
            request.outcome.set_result(snapshot)
            return
        request.outcome.set_exception(
            Failed(
                f"Snapshot {'' if snapshot is None else f'{snapshot} '}was not taken: {failure}.",
                untouched="The system runs on; earlier snapshots are untouched.",
                next="Ask again.",
            )
        )


def ignore_outcome(outcome: asyncio.Future[SnapshotId]) -> None:
    """Nobody waits for it; the log has it."""
    if not outcome.cancelled():
        outcome.exception()

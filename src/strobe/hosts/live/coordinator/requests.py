"""Snapshots that somebody asked for, and waits for."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from strobe.model.errors import Failed, Misuse
from strobe.model.ids import NodeId, SnapshotId

__all__ = ["Request", "Requests", "ignore_outcome", "take_place"]


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
        if directory is not None:
            take_place(directory, [other.directory for other in self._open.values()])
        outcome: asyncio.Future[SnapshotId] = asyncio.get_running_loop().create_future()
        name = f"r{next(self._numbers)}"
        self._open[name] = Request(outcome, initiators, directory, breakpoint)
        return name, outcome

    def of(self, name: str | None) -> Request:
        """The request of a snapshot; None for a periodic one."""
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
                f"Snapshot {'' if snapshot is None else f'{snapshot} '}was not taken: {(failure or '').rstrip('.')}.",
                untouched="The system runs on; earlier snapshots are untouched.",
                next="Ask again.",
            )
        )


def take_place(directory: Path, others: Iterable[Path | None] = ()) -> None:
    """Make the savepoint's directory. It must be new or empty: other files belong to somebody else."""
    untouched = "No snapshot was started; the system runs on."
    try:
        directory.mkdir(parents=True, exist_ok=True)
        empty = not any(directory.iterdir())
    except (FileExistsError, NotADirectoryError):
        empty = False
    except OSError as error:
        raise Failed(
            f"The savepoint cannot be written to {directory}: {error.strerror or error}.",
            untouched=untouched,
            next="Name a directory that the system may write to.",
        ) from error
    if not empty or directory in others:
        why = "it is not an empty directory" if not empty else "another savepoint is being written there"
        raise Misuse(
            f"The savepoint cannot go to {directory}: {why}.",
            untouched=untouched,
            next="Name a directory that does not exist yet, or is empty.",
        )


def ignore_outcome(outcome: asyncio.Future[SnapshotId]) -> None:
    """Nobody waits for the outcome; it is in the log."""
    if not outcome.cancelled():
        outcome.exception()

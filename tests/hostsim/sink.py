"""A system outside, behind a sink that delivers on snapshot: it outlives every driver and every loss of power.

It takes each part once, in the order of snapshots, and looks at the home's disk when it is told to make one visible: a
complete snapshot must name that part already, and must be there after any loss of power.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from strobe.hosts.spark.connectors.base import Part, SinkContext, TransactionalSink, Unreachable
from strobe.hosts.spark.connectors.staging import Staging
from strobe.model.cut import Json
from tests.hostsim.scheduler import Scheduler
from tests.hostsim.spark import read_rows

__all__ = ["Outside", "PlayedSink", "Violation"]


class Violation(AssertionError):
    """A law is broken."""


@dataclass
class Outside:
    scheduler: Scheduler
    prepared: dict[str, list[str]] = field(default_factory=dict)
    visible: dict[str, list[str]] = field(default_factory=dict)  # by handle, in the order of commits
    refusals: int = 0  # how many of the next requests it does not answer
    refused: int = 0
    on_commit: Callable[[str], None] = lambda handle: None

    @property
    def rows(self) -> list[str]:
        return [row for rows in self.visible.values() for row in rows]

    def request(self, what: str, handle: str) -> None:
        self.scheduler.point(f"sink: {what} {handle}")
        if self.refusals > 0:
            self.refusals -= 1
            self.refused += 1
            raise Unreachable("the system behind the sink does not answer")


class PlayedSink(TransactionalSink):
    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def describe(self) -> str:
        return "a system outside"

    def place(self) -> str:
        return "outside"

    def open(self, context: SinkContext) -> None:
        self._staging = Staging(context)
        self._own = f"{context.job}/{context.name}/"

    def write(self, batch: Any, batch_id: int) -> None:
        self._staging.write(batch, batch_id)

    def last_batch(self) -> int | None:
        return self._staging.last_batch()

    def prepare(self, part: Part) -> Json:
        rows = self._rows(part)
        self._outside.request("prepare", part.handle)
        self._outside.prepared[part.handle] = rows
        return {"rows": cast(Json, rows)}

    def commit(self, part: Part, prepared: Json) -> None:
        outside = self._outside
        outside.request("commit", part.handle)
        if part.handle not in outside.visible:
            if part.handle not in outside.prepared:
                raise Violation(f"law 4: {part.handle} is to be made visible, and is not prepared")
            outside.on_commit(part.handle)
            outside.visible[part.handle] = outside.prepared.pop(part.handle)
        outside.scheduler.point("sink: visible")
        self._staging.forget(part)

    def abort(self, part: Part, prepared: Json) -> None:
        self._outside.request("abort", part.handle)
        self._outside.prepared.pop(part.handle, None)
        self._staging.forget(part)

    def visible(self, part: Part, prepared: Json, context: SinkContext) -> bool:
        return part.handle in self._outside.visible

    def recover(self, parts: Iterable[Part]) -> None:
        known = {part.handle for part in parts}
        self._outside.request("recover", "")
        for handle in [h for h in self._outside.prepared if h.startswith(self._own) and h not in known]:
            del self._outside.prepared[handle]

    def _rows(self, part: Part) -> list[str]:
        return [row for file in self._staging.files(part) for row in read_rows(file)]

"""What a mutant is: a machine that breaks one rule of its protocol and keeps all others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from strobe.hosts.sim.judge import ViolationKind
from strobe.model.ids import SnapshotId
from strobe.protocol.events import Effect, NodeRecorded

__all__ = ["FinishesBeforeTheLast", "Mutant"]


@dataclass(frozen=True)
class Mutant:
    name: str
    protocols: tuple[str, ...]  # the modes in which the rule matters; the first shows it best
    shows: ViolationKind  # how it is found out, where it matters most: in the first of the protocols
    machine: type[Any]  # with the constructor of the protocol's own machine
    rule: str  # what it breaks, in one sentence


class FinishesBeforeTheLast(ABC):
    """Over any machine that records channels: calls a node's part complete when one channel is still open."""

    _told: frozenset[SnapshotId] = frozenset()

    @abstractmethod
    def _channels_open(self, snapshot: SnapshotId) -> int: ...

    def key(self) -> object:
        return super().key(), self._told  # type: ignore[misc]

    def _finish(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        left, told = self._channels_open(snapshot), snapshot in self._told
        if left:
            self._told |= {snapshot} if left == 1 else set()
            return (NodeRecorded(snapshot),) if left == 1 and not told else ()
        effects: tuple[Effect, ...] = super()._finish(snapshot)  # type: ignore[misc]
        return () if told else effects

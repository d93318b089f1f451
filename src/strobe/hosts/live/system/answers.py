"""The shape of what a running system answers, by operation: whoever asks checks that it is a system that answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import UNSET, Struct, UnsetType

from strobe.hosts.live.system.report import Report

__all__ = ["ANSWERS"]


class Taken(Struct, frozen=True):
    """Figures are there unless retention was faster than the answer."""

    system: str
    snapshot: int
    where: str
    kind: str | UnsetType = UNSET
    completed: str | UnsetType = UNSET
    took_ms: float | UnsetType = UNSET
    gap_ms: float | UnsetType = UNSET
    alignment_ms: float | UnsetType = UNSET
    bytes_new: int | UnsetType = UNSET
    bytes_total: int | UnsetType = UNSET
    messages_in_flight: int | UnsetType = UNSET


class Restored(Struct, frozen=True):
    system: str
    snapshot: int | str
    incarnation: int


class Killed(Struct, frozen=True):
    system: str
    node: str
    pid: int | None


class Hit(Struct, frozen=True):
    system: str
    condition: str
    node: str
    snapshot: int
    where: str
    states: dict[str, Any]
    channels: dict[str, list[Any]]


class Ended(Struct, frozen=True):
    system: str
    why: str
    snapshot: int | None
    trouble: str


ANSWERS: Final[Mapping[tuple[str, str], type]] = {
    ("GET", "/v1/status"): Report,
    ("POST", "/v1/snapshot"): Taken,
    ("POST", "/v1/restore"): Restored,
    ("POST", "/v1/kill"): Killed,
    ("POST", "/v1/break"): Hit,
    ("POST", "/v1/down"): Ended,
}

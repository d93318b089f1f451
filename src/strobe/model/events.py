"""What can happen in a system, one class per kind of event: the vocabulary of journals and of the verifier.

A node moves in atomic *steps*: an internal action or the receipt of one message, with the sends that it causes.
Events of one step share `step`; a node records between steps, never inside one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from strobe.model.cut import Cut, Json
from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId

__all__ = [
    "Completed", "Crashed", "Duplicated", "Event", "Internal", "Lost", "MarkerReceived", "MarkerSent", "Received",
    "Recorded", "Restarted", "Sent",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Internal:
    """The node acted by itself; `action` is the input that the application was given."""

    node: NodeId
    step: int
    action: Json


@dataclass(frozen=True, slots=True)
class Sent:
    node: NodeId
    step: int
    channel: ChannelId
    seq: int
    payload: Json


@dataclass(frozen=True, slots=True)
class Received:
    """The application got the message: not when it reached the host, which may have held it back."""

    node: NodeId
    step: int
    channel: ChannelId
    seq: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """The node captured its state for a snapshot. `step` is the last step that the state contains."""

    node: NodeId
    step: int
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class MarkerSent:
    node: NodeId
    step: int
    channel: ChannelId
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class MarkerReceived:
    node: NodeId
    step: int
    channel: ChannelId
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class Lost:
    """The channel dropped the message."""

    channel: ChannelId
    seq: int


@dataclass(frozen=True, slots=True)
class Duplicated:
    """The channel will deliver the message once more."""

    channel: ChannelId
    seq: int


@dataclass(frozen=True, slots=True)
class Crashed:
    node: NodeId


@dataclass(frozen=True, slots=True)
class Restarted:
    """The whole system starts again from `cut` (a complete snapshot, or the initial state as snapshot 0).

    Everything before belongs to an older incarnation. Steps and sequence numbers go on counting; the messages in
    `cut.channels` are in flight again.
    """

    incarnation: Incarnation
    cut: Cut


@dataclass(frozen=True, slots=True)
class Completed:
    """A snapshot is complete: this is what it recorded."""

    cut: Cut


Event: TypeAlias = (
    Internal | Sent | Received | Recorded | MarkerSent | MarkerReceived | Lost | Duplicated | Crashed | Restarted
    | Completed
)  # fmt: skip

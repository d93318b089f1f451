"""Inputs and effects that the snapshot machines share.

Inputs are what happened; effects are what the host must now do, in order. Messages are opaque: the machines keep
references to them as channel content and hand them back, they never look inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from strobe.model.ids import ChannelId, SnapshotId

__all__ = [
    "ORDINARY", "Abort", "AlignmentTimedOut", "BarrierArrived", "BarrierOptions", "ChannelRecorded", "CountArrived",
    "Declined", "Deliver", "Effect", "Hold", "Initiate", "Input", "InputEnded", "Machine", "MarkerArrived",
    "MessageArrived", "NodeRecorded", "Overtake", "RecordState", "Release", "SendBarrier", "SendCount", "SendMarker",
    "SendStamped", "Sending", "StartTimer", "Thaw",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class BarrierOptions:
    """What a snapshot asks of the nodes that it passes, besides recording. A barrier carries it, so a node that
    reaches the barrier knows it. `last`: a node that has recorded begins nothing more, unless the snapshot is given up.
    `aligned`: nodes align it, whatever they do with others."""

    last: bool = False
    aligned: bool = False


ORDINARY: Final = BarrierOptions()


# ── inputs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Initiate:
    """Start this snapshot here, or join it if it has reached this node already."""

    snapshot: SnapshotId
    options: BarrierOptions = ORDINARY


class MessageArrived(NamedTuple):
    """An application message is next on `channel`. `stamp` is the sender's snapshot number (Lai–Yang only)."""

    channel: ChannelId
    message: Any
    stamp: int = 0


class Sending(NamedTuple):
    """The application is about to send `message` (only machines with `stamps_messages` need to know)."""

    channel: ChannelId
    message: Any


@dataclass(frozen=True, slots=True)
class MarkerArrived:
    channel: ChannelId
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class BarrierArrived:
    """A barrier is next on `channel`, or has overtaken the queue there.

    `overtook` is set when the barrier may have jumped ahead; `overtaken` is then what it jumped over, in order. Those
    messages are still to be delivered, and are the channel's content for this snapshot.
    """

    channel: ChannelId
    snapshot: SnapshotId
    overtook: bool = False
    overtaken: tuple[Any, ...] = ()
    options: BarrierOptions = ORDINARY


@dataclass(frozen=True, slots=True)
class InputEnded:
    """Nothing will come on `channel` any more."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class AlignmentTimedOut:
    """The timer that `StartTimer(snapshot)` asked for has run out."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class CountArrived:
    """The sender of `channel` had sent `sent` messages on it, since the beginning, when it recorded `snapshot`."""

    channel: ChannelId
    snapshot: SnapshotId
    sent: int


@dataclass(frozen=True, slots=True)
class Abort:
    """The snapshot is given up, everywhere. What still comes of it is swallowed."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class Thaw:
    """Only the freezing protocol of `strobe.protocol.wrong`: the node may go on."""

    snapshot: SnapshotId


Input: TypeAlias = (
    Initiate | MessageArrived | Sending | MarkerArrived | BarrierArrived | InputEnded | AlignmentTimedOut | CountArrived
    | Abort | Thaw
)  # fmt: skip


# ── effects ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class RecordState:
    """Capture the node's state for `snapshot` now: after all that was delivered, before anything else is."""

    snapshot: SnapshotId
    options: BarrierOptions = ORDINARY


@dataclass(frozen=True, slots=True)
class SendMarker:
    channel: ChannelId
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class SendBarrier:
    """Put the barrier on `channel`; with `overtakes`, ahead of queued messages (never ahead of another barrier)."""

    channel: ChannelId
    snapshot: SnapshotId
    overtakes: bool = False
    options: BarrierOptions = ORDINARY


@dataclass(frozen=True, slots=True)
class SendCount:
    """Tell the receiver of `channel`, by any path, in any order, how many messages went out before the recording."""

    channel: ChannelId
    snapshot: SnapshotId
    sent: int


class SendStamped(NamedTuple):
    channel: ChannelId
    message: Any
    stamp: int


class Deliver(NamedTuple):
    """Give the message to the application."""

    channel: ChannelId
    message: Any


@dataclass(frozen=True, slots=True)
class Hold:
    """Take nothing more from `channel` until it is released; what is there waits in order."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class Release:
    channel: ChannelId


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Answer with `AlignmentTimedOut(snapshot)` when the alignment timeout is over; too late is not an error."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class Overtake:
    """If the barrier waits in the queue of `channel`, hand it over now, with what it overtakes."""

    channel: ChannelId
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class ChannelRecorded:
    snapshot: SnapshotId
    channel: ChannelId
    content: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class NodeRecorded:
    """This node's part is complete: its state and all its input channels."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class Declined:
    """This node cannot contribute to the snapshot any more; the coordinator should abort it."""

    snapshot: SnapshotId
    reason: str


Effect: TypeAlias = (
    RecordState | SendMarker | SendBarrier | SendCount | SendStamped | Deliver | Hold | Release | StartTimer | Overtake
    | ChannelRecorded | NodeRecorded | Declined
)  # fmt: skip


class Machine(Protocol):
    """The one shape of every snapshot protocol."""

    stamps_messages: bool

    def step(self, input: Input) -> tuple[Effect, ...]: ...

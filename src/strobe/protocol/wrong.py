"""Two ways to take a snapshot that do not work, kept to teach and to test the verifier.

`AgreedClock`: every node records when its own clock shows the agreed time. Clocks are skewed, so a message can be sent
after one recording and received before another: money appears. Nobody looks at the channels: money vanishes.

`FreezeInTurn`: a node is frozen, recorded and thawed, then the next. Same two faults, without any clock.

Both are driven by the host with `Initiate` (when the clock shows the time, or when it is the node's turn).
"""

from __future__ import annotations

from collections.abc import Iterable

from strobe.model.errors import HostFault
from strobe.model.ids import ChannelId, SeenIds, SnapshotId
from strobe.protocol.events import (
    Abort,
    ChannelRecorded,
    Deliver,
    Effect,
    Hold,
    Initiate,
    Input,
    MessageArrived,
    NodeRecorded,
    RecordState,
    Release,
    Thaw,
)

__all__ = ["AgreedClock", "FreezeInTurn"]


class AgreedClock:
    stamps_messages = False

    def __init__(self, inputs: Iterable[ChannelId], outputs: Iterable[ChannelId]) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._taken = SeenIds()

    def key(self) -> object:
        return self._taken.key()

    def step(self, input: Input) -> tuple[Effect, ...]:
        match input:
            case MessageArrived():
                return (Deliver(input.channel, input.message),)
            case Initiate():
                return self._record(input.snapshot)
            case Abort():
                return ()
            case _:
                raise HostFault(f"A snapshot by the clock takes no {type(input).__name__}.")

    def _record(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        if snapshot in self._taken:
            return ()
        self._taken.add(snapshot)
        # The mistake: every channel is declared empty without having been looked at.
        empty = (ChannelRecorded(snapshot, channel, ()) for channel in self.inputs)
        return (RecordState(snapshot), *empty, NodeRecorded(snapshot))


class FreezeInTurn(AgreedClock):
    def __init__(self, inputs: Iterable[ChannelId], outputs: Iterable[ChannelId]) -> None:
        super().__init__(inputs, outputs)
        self._frozen = False

    def key(self) -> object:
        return self._frozen, super().key()

    def step(self, input: Input) -> tuple[Effect, ...]:
        match input:
            case Initiate() if not self._frozen:
                self._frozen = True
                return (*(Hold(channel) for channel in self.inputs), *self._record(input.snapshot))
            case Thaw():
                self._frozen = False
                return tuple(Release(channel) for channel in self.inputs)
            case MessageArrived() if self._frozen:
                raise HostFault(f"A message came on {input.channel!r}, but the node is frozen.")
            case _:
                return super().step(input)

"""How long a node's part took is told by the clock that it was given. Timers of a live system are its event loop's."""

from __future__ import annotations

from dataclasses import dataclass, field

from strobe.hosts.live.node.recording import Position, Recordings
from strobe.hosts.live.wire.control import PartTaken
from strobe.model.ids import NodeId, SnapshotId
from tests.support.held_clock import HeldClock


@dataclass
class Owner:
    clock: HeldClock
    parts: list[PartTaken] = field(default_factory=list)

    def piece(self, snapshot: SnapshotId, data: bytes, channel: str = "") -> bool:
        self.clock.advance(0.5)  # writing takes that long
        return True

    def recorded(self, part: PartTaken) -> None:
        self.parts.append(part)

    def declined(self, snapshot: SnapshotId, reason: str) -> None:
        raise AssertionError(reason)


def test_the_phases_of_a_part_are_those_of_the_clock() -> None:
    clock = HeldClock()
    owner = Owner(clock)
    recordings = Recordings(NodeId("a"), 1, owner, fork_above=1 << 20, clock=clock)

    def state() -> dict[str, int]:
        clock.advance(0.25)
        return {"balance": 5}

    recordings.record(SnapshotId(1), Position({}, {}, [], 7), state)
    clock.advance(2)
    recordings.close(SnapshotId(1))
    (part,) = owner.parts
    assert (part.gap_ms, part.write_ms, part.align_ms) == (750, 750, 2750)

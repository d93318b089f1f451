"""Large states and much in flight, with real processes and real sizes: the coordinating process stays small."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from strobe.hosts.live.coordinator.intake import Intake
from strobe.hosts.live.snapshot.bulk import SMALL, packed, unpacked
from strobe.hosts.live.snapshot.snapshots import messages_in_flight
from strobe.hosts.live.wire.control import PartTaken, Piece
from strobe.model.ids import NodeId
from strobe.store.locate import locate
from tests.support.live.commandline import Terminal, up
from tests.support.waiting import eventually

MIB = 1 << 20
STATE, SENT = 200, 64  # MiB

SYSTEM = f"""
import os, time
from dataclasses import dataclass, field
from strobe.hosts.live import NodeSpec, Process, Topology, joined

@dataclass
class Source(Process):
    ballast: list[bytes] = field(default_factory=list)

    def on_start(self):
        self.ballast = [bytes([i % 251]) * {MIB} for i in range({STATE})]
        for number in range({SENT}):
            self.send("b", bytes([number]) * {MIB})

@dataclass
class Sink(Process):
    seen: list[int] = field(default_factory=list)

    def on_message(self, sender, message):
        while not os.path.exists("go"):
            time.sleep(0.002)
        self.seen.append(message[0])
        if len(self.seen) == {SENT}:
            with open("seen.tmp", "w") as file:
                file.write(repr(self.seen))
            os.rename("seen.tmp", "seen")

large = Topology("large", (NodeSpec("a", Source), NodeSpec("b", Sink)), joined(("a", "b")))
"""


def high_water(pid: int) -> int:
    """The most memory that the process has ever had, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def test_much_in_flight_and_a_large_state_go_through_a_small_process(tmp_path: Path) -> None:
    strobe = Terminal(tmp_path)
    (tmp_path / "large.py").write_text(SYSTEM, encoding="utf-8")
    with up(strobe, "large.py") as started:
        before = high_water(started["pid"])
        taking = subprocess.Popen(strobe.command("live", "snapshot", "large"), cwd=tmp_path)
        while not any((tmp_path / ".strobe" / ".tmp").glob("*/1")):  # a's state comes in: b has been asked, too
            time.sleep(0.01)
            assert taking.poll() is None
        (tmp_path / "go").touch()
        assert taking.wait(60) == 0
        assert high_water(started["pid"]) - before < 64, "MiB more than without a snapshot"
        assert strobe("verify", "large").code == 0
        assert messages_in_flight(locate("large", strobe.home).load()) > 32
        assert strobe("live", "down", "large", "--now").code == 0
    (tmp_path / "seen").unlink(missing_ok=True)
    with up(strobe, "large.py") as started:
        eventually((tmp_path / "seen").exists, "the message is seen")
        assert (tmp_path / "seen").read_text(encoding="utf-8") == repr(list(range(SENT)))
        assert high_water(started["pid"]) - before < 64


def part(**changes: object) -> PartTaken:
    known: dict[str, object] = {
        "incarnation": 1, "snapshot": 7, "state_bytes": 0, "sent": {}, "received": {}, "contents": {},
        "content_bytes": {}, "timers": [], "step": 0, "gap_ms": 0.0, "write_ms": 0.0, "align_ms": 0.0, "forked": False,
    }  # fmt: skip
    return PartTaken(**{**known, **changes})  # type: ignore[arg-type]


def test_a_part_that_cannot_be_kept_says_why_and_only_its_snapshot_is_lost(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    intake, a = Intake(tmp_path / "file"), NodeId("a")  # no directory can be made below a file
    for _ in range(5):
        intake.add(a, Piece(7, "", bytes(SMALL)))
    reason = intake.take(a, part(state_bytes=5 * SMALL))
    assert isinstance(reason, str)
    assert "could not be kept" in reason
    intake.release(7)()  # type: ignore[arg-type]
    intake.add(a, Piece(8, "", b"small"))
    assert not isinstance(intake.take(a, part(snapshot=8, state_bytes=5)), str)


def test_a_large_part_is_on_disk_until_its_snapshot_is_over(tmp_path: Path) -> None:
    intake, a = Intake(tmp_path), NodeId("a")
    for number in range(3):
        intake.add(a, Piece(7, "x", bytes([number]) * SMALL))
    taken = intake.take(a, part(content_bytes={"x": 3 * SMALL}))
    assert not isinstance(taken, str)
    (where,) = taken.contents.values()
    assert isinstance(where, Path)
    assert where.stat().st_size == 3 * SMALL
    assert intake.take(a, part(content_bytes={"x": 3 * SMALL + 1})) == "its part did not come whole"
    intake.release(7)()  # type: ignore[arg-type]
    assert not where.exists()


@pytest.mark.parametrize("count", [0, 1, 15, 16, 65_535, 65_536])
def test_a_content_in_pieces_is_the_content(count: int) -> None:
    items = [b"\xc4\x01" + bytes([number % 256]) for number in range(count)]
    assert unpacked(b"".join(packed(items, count))) == items

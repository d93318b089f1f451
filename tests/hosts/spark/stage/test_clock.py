"""Time comes in: host code asks its clock and nobody else, so a test can hold the time in its hand."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from strobe.hosts.shared.clock import SYSTEM, utc_now
from strobe.hosts.spark.channel.admission import Limits
from strobe.hosts.spark.snapshot.coordinator import SnapshotWriter
from strobe.hosts.spark.snapshot.messages import AbortSnapshot, StageReady, StartSnapshot, ToAgent
from strobe.model.ids import Incarnation, NodeId
from strobe.model.kind import Kind
from strobe.protocol.barriers import BarrierMode
from strobe.protocol.coordinator.messages import CoordinatorSettings
from tests.support.held_clock import HeldClock
from tests.support.spark.agent_world import World
from tests.support.spark.wired_world import ScheduledCoordinator

HOSTS = Path(__file__).parents[4] / "src" / "strobe" / "hosts"
FILES = sorted(p for host in ("spark", "live", "shared") for p in (HOSTS / host).rglob("*.py") if p.name != "clock.py")


def other_clocks(source: str) -> Iterator[str]:
    """Where `source` asks the operating system for the time."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names) if any(name.name == "time" for name in names):
                yield f"line {node.lineno}: import time"
            case ast.ImportFrom(module="time"):
                yield f"line {node.lineno}: from time import"
            case ast.Attribute(value=ast.Name(id="datetime" | "date"), attr="now" | "utcnow" | "today" as name):
                yield f"line {node.lineno}: {name}()"
            case ast.Attribute(value=ast.Name(id="threading"), attr="Timer"):
                yield f"line {node.lineno}: a timer"
            case ast.ImportFrom(module="threading", names=names) if any(name.name == "Timer" for name in names):
                yield f"line {node.lineno}: a timer"


def test_only_the_clock_asks_the_operating_system_for_the_time() -> None:
    found = [f"{path.relative_to(HOSTS)}, {what}" for path in FILES for what in other_clocks(path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import os, time",
        "def f():\n    from time import sleep",
        "now = datetime.now(UTC)",
        "threading.Timer(1, f).start()",
    ],
)
def test_another_clock_is_found(source: str) -> None:
    assert list(other_clocks(source))


def test_a_time_is_written_in_utc_with_milliseconds() -> None:
    assert utc_now(HeldClock(1_937_079_000.25)) == "2031-05-20T21:30:00.250Z"
    assert SYSTEM.time() > 1_700_000_000


def test_an_alignment_times_out_when_the_clock_says_so(tmp_path: Path) -> None:
    clock = HeldClock()
    reads: dict[str, tuple[str, ...]] = {"fast": (), "slow": (), "join": ("fast", "slow")}
    world = World(tmp_path, reads, mode=BarrierMode.ALIGNED_WITH_TIMEOUT, limits=Limits(rows=10), clock=clock)
    try:
        for _ in range(5):
            world.source_batch("fast", 10)
        world.trigger(1)
        world.batch("join")
        clock.advance(3599)
        assert "join" not in world.parts(1)
        clock.advance(1)
        world.check(1)
        assert world.parts(1)["join"].in_flight[NodeId("fast")].rows == 40
    finally:
        world.close()


def test_a_snapshot_is_given_up_when_the_clock_says_so() -> None:
    clock, told = HeldClock(), list[ToAgent]()
    host = ScheduledCoordinator(
        {NodeId("a"): ()}, CoordinatorSettings(timeout=600_000, tolerable_failures=1), next_snapshot=1, retained=(),
        writer=SnapshotWriter(), tell=lambda node, message: told.append(message), fail_job=pytest.fail, clock=clock,
    )  # fmt: skip
    host.start()
    host.post(StageReady(NodeId("a"), Incarnation(1)))
    host.ask("r", Kind.CHECKPOINT, last=False)
    while host.turn():
        pass
    assert isinstance(told[-1], StartSnapshot)
    clock.advance(599.999)
    host.tick()
    assert isinstance(told[-1], StartSnapshot)
    clock.advance(0.001)
    host.tick()
    assert isinstance(told[-1], AbortSnapshot)
    assert host.history[0].duration_ms == pytest.approx(600_000)

"""Breakpoints over real processes, and the conditions that they wait for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from strobe.cli.main import cli
from strobe.hosts.live.api.conditions import Unevaluable, read_condition
from strobe.hosts.live.api.topology import NodeSpec, Topology, joined
from strobe.hosts.live.coordinator.breakpoints import Breakpoints
from strobe.hosts.live.wire.control import BreakHit, Control
from strobe.model.errors import Misuse
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.store.snapshots import SnapshotStore
from tests.support.live.apps import Account, Counter, SlowAccount
from tests.support.live.systems import bank, money, run, settings, system, verified

NODES = (NodeId("a"), NodeId("node-7"))


@dataclass
class Sample:
    balance: int = 5
    name: str = "x"
    queue: list[int] = field(default_factory=lambda: [1, 2, 3])
    table: dict[str, int] = field(default_factory=lambda: {"k": 9})
    nothing: Any = None
    _hidden: int = 1


@pytest.mark.parametrize(
    "text",
    [
        "node.balance == 5",
        "a.balance * 2 - 1 > 8 and len(a.queue) == 3",
        "not (node.balance < 0 or node.name == 'y')",
        "0 < node.balance <= 5",
        "node.table['k'] in [9, 10]",
        "node['node-7'].balance // 2 == 2",
        "node.nothing is None",
        "-node.balance < 0",
    ],
)
def test_conditions_that_hold(text: str) -> None:
    condition = read_condition(text, NODES)
    condition.check(Sample())
    assert condition.holds(Sample())
    assert not condition.holds(Sample(-9, "y", [], {"k": 0}, 0))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("node.balance <", "invalid syntax"),
        ("", "invalid syntax"),
        ("1 < 2", "names no field"),
        ("b.balance < 0", "no node 'b'; the nodes are: a, node-7"),
        ("node['b'].balance < 0", "no node 'b'"),
        ("balance < 0", "'balance' stands alone"),
        ("a.balance < node.balance", "any node and of a certain one"),
        ("node.__class__ == 1", "'__class__' is not a field"),
        ("node.queue._x == 1", "'_x' is not a field"),
        ("__import__('os').system('true')", "only len"),
        ("node.queue.clear()", "only len"),
        ("node.balance ** 999999", "is not allowed"),
        ("[x for x in node.queue]", "is not allowed"),
        ("(lambda: node.balance)()", "only len"),
        ("node.balance if 1 else 2", "is not allowed"),
        ("f'{node.balance}'", "is not allowed"),
        ("-" * 200 + "node.balance", "too deeply"),
        ("node.balance < 0 " * 100, "longer than"),
    ],
)
def test_text_that_is_no_condition_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(Misuse, match="is not a condition") as caught:
        read_condition(text, NODES)
    assert why in str(caught.value)


def test_a_condition_that_makes_no_sense_for_a_state_says_so() -> None:
    for text in ("node.name + 1 > 0", "node.queue * 1000000 == 0", "node.table['z'] == 1", "node.balance % 0 == 1"):
        with pytest.raises(Unevaluable):
            read_condition(text, NODES).holds(Sample())


@pytest.mark.parametrize("cls", [Account, SlowAccount])
def test_the_snapshot_shows_the_state_in_which_the_condition_held(tmp_path: Path, cls: type[Account]) -> None:
    async def work() -> None:
        async with system(bank(cls=cls), tmp_path, settings=settings(interval=50)) as live:
            for _ in range(3):
                hit = await live.break_when("node.turn % 97 == 13 and node.balance % 2 == 1")
                assert hit.state["turn"] % 97 == 13
                assert hit.state["balance"] % 2 == 1
                assert money(hit.loaded) == 3000
            hit = await live.break_when("b.turn % 50 == 7")
            assert hit.node == "b"
            assert money(verified(live, await live.snapshot())) == 3000
            assert live.incarnation == 1
        checked = CliRunner().invoke(cli, ["verify", str(hit.directory)])
        assert checked.exit_code == 0, checked.output

    run(work)


def test_a_condition_is_judged_after_each_message_not_only_after_many(tmp_path: Path) -> None:
    topology = Topology("count", tuple(NodeSpec(NodeId(n), Counter) for n in "ab"), joined(("a", "b")))

    async def work() -> None:
        async with system(topology, tmp_path) as live:
            for _ in range(3):
                seen = (await live.break_when("b.seen % 1009 == 1008")).state["seen"]
                assert seen % 1009 == 1008
            assert (await live.status()).running

    run(work)


def test_a_breakpoint_waits_on_through_a_crash(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(bank(), tmp_path) as live:
            await live.snapshot()
            waiting = asyncio.ensure_future(live.break_when("node.turn > 2000"))
            await asyncio.sleep(0)
            live.kill("b")
            await live.incarnation_after(1)
            hit = await waiting
            assert hit.state["turn"] > 2000
            assert money(hit.loaded) == 3000

    run(work)


class Owner:
    """A coordinator whose node b is lost, and whose next life has not begun."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.incarnation = Incarnation(1)
        self.taken: list[NodeId] = []

    def say(self, node: NodeId, message: Control) -> None:
        pass

    def break_snapshot(self, node: NodeId, number: int) -> asyncio.Future[SnapshotId]:
        self.taken.append(node)
        return asyncio.get_running_loop().create_future()

    def savepoint(self, snapshot: SnapshotId) -> tuple[Path, SnapshotStore]:
        raise AssertionError("none is complete here")


def test_of_a_life_that_is_ending_no_snapshot_is_taken() -> None:
    async def work() -> None:
        owner, graph = Owner(), bank("ab").graph
        breakpoints = Breakpoints(owner, graph)
        condition = read_condition("node.turn > 3", graph.nodes)
        waiting = asyncio.ensure_future(breakpoints.wait(condition, graph.nodes, lambda: asyncio.sleep(0)))
        await asyncio.sleep(0)
        breakpoints.said(NodeId("a"), BreakHit(1, 1))
        assert owner.taken == []
        owner.incarnation = Incarnation(2)
        owner.running.set()
        breakpoints.said(NodeId("a"), BreakHit(1, 1))  # from the life before
        assert owner.taken == []
        breakpoints.said(NodeId("b"), BreakHit(2, 1))
        assert owner.taken == [NodeId("b")]
        waiting.cancel()

    run(work)


def test_a_field_that_does_not_exist_is_named_with_those_that_do(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(bank("ab"), tmp_path) as live:
            with pytest.raises(Misuse, match=r"at node \w: Account has no field 'balanse'; it has: balance, burst"):
                await live.break_when("node.balanse < 0")
            with pytest.raises(Misuse, match="no node 'x'"):
                await live.break_when("x.balance < 0")
            with pytest.raises(Misuse, match="is not a number"):
                await live.break_when("node.name + 1 > 0")
            assert money(verified(live, await live.snapshot())) == 2000

    run(work)


def test_a_breakpoint_that_is_given_up_leaves_nothing_behind(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(bank("ab"), tmp_path) as live:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await live.break_when("node.balance > 1000000")
            assert live._running().breakpoints.texts(NodeId("a")) == {}
            assert money(verified(live, await live.snapshot())) == 2000

    run(work)

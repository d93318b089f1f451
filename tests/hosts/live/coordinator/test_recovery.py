"""Processes die; the system goes back to its last complete snapshot and goes on."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import signal
import socket
from pathlib import Path

import pytest

from strobe.hosts.live.api.codec import decode_plain
from strobe.hosts.live.api.topology import NodeSpec, Topology, joined, ring
from strobe.hosts.live.journal.merge import merge
from strobe.hosts.live.snapshot.snapshots import Loaded, load
from strobe.hosts.live.wire import link as link_module
from strobe.model.errors import Failed, Misuse
from strobe.model.ids import NodeId, SnapshotId
from strobe.model.kind import Kind
from strobe.verify.consistency import check_journal
from tests.support.live.apps import Account, Counter, Returning, SlowAccount, Stumbler, Talker
from tests.support.live.systems import bank, money, run, settings, system, verified


def test_a_killed_node_brings_the_system_back_to_its_last_snapshot(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(bank(), tmp_path) as live:
            before = await live.snapshot()
            live.kill("b")
            assert await live.incarnation_after(1) == 2
            again = verified(live, await live.snapshot())
            assert money(again) == 3000
            assert live.store.load(again.snapshot).incarnation == 2
            assert live.store.load(again.snapshot).timeline > live.store.load(before).timeline

    run(work)


def test_random_kills_under_load_cost_no_money_and_the_journal_shows_it(tmp_path: Path) -> None:
    topology = bank("abcd", burst=3, seconds=0.004)
    dice = random.Random(11)

    async def work() -> None:
        async with system(topology, tmp_path, journal=True, settings=settings(interval=60), max_restarts=50) as live:
            for _ in range(4):
                await asyncio.sleep(dice.uniform(0, 0.2))
                incarnation = live.incarnation
                for victim in dice.sample("abcd", dice.randint(1, 2)):
                    with contextlib.suppress(ProcessLookupError):
                        live.kill(victim)
                await live.incarnation_after(incarnation)
            assert money(verified(live, await live.snapshot(Kind.CHECKPOINT))) == 4000
            for snapshot in live.store.list():
                assert money(verified(live, snapshot)) == 4000

    run(work)
    report = check_journal(merge(tmp_path / "jobs" / "bank" / "journal", topology.graph, "bank"))
    assert report.ok, report.sentence
    assert report.epochs >= 5


def test_what_was_in_flight_comes_again_in_order_and_once(tmp_path: Path) -> None:
    """The receiver fails on any number that is lost, repeated or out of order, which would end the system."""
    topology = Topology("ring", tuple(NodeSpec(NodeId(n), Counter) for n in "ab"), ring("ab"))

    async def work() -> None:
        async with system(topology, tmp_path, settings=settings(interval=30)) as live:
            for victim in "ab":
                while not live.store.list():
                    await asyncio.sleep(0.01)
                incarnation = live.incarnation
                live.kill(victim)
                await live.incarnation_after(incarnation)
                await live.snapshot()
            assert live.incarnation == 3
            loaded = verified(live, await live.snapshot())
            assert all(decode_plain(state)["seen"] > 0 for state in loaded.states.values())

    run(work)


def test_without_any_snapshot_the_system_begins_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(bank(), tmp_path) as live:
            live.kill("a")
            await live.incarnation_after(1)
            assert money(verified(live, await live.snapshot())) == 3000

    run(work)


def test_a_snapshot_that_a_death_interrupts_is_given_up_and_the_next_one_completes(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(bank(), tmp_path) as live:
            live.kill("c", signal.SIGSTOP)
            taking = asyncio.ensure_future(live.snapshot())
            await asyncio.sleep(0)
            live.kill("c")
            with pytest.raises(Failed, match="c was lost: its process was ended by SIGKILL"):
                await taking
            await live.incarnation_after(1)
            assert money(verified(live, await live.snapshot())) == 3000
            assert len(live.store.list()) == 1

    run(work)


def test_going_back_gives_up_only_what_was_under_way_and_says_why(tmp_path: Path) -> None:
    """A snapshot that is due meanwhile waits for the new life, instead of starting between two."""

    async def work() -> None:
        async with system(bank(), tmp_path, settings=settings(interval=30)) as live:
            first = await live.snapshot()
            live.kill("a")
            await live.incarnation_after(1)
            await live.snapshot()
            reasons = set((await live.status()).aborted.values())
            assert reasons <= {"a was lost: its process was ended by SIGKILL"}
            await live.restore(first)
            reasons = set((await live.status()).aborted.values()) - reasons
            assert reasons <= {"the system was restored"}

    run(work)


def test_a_node_that_hangs_for_good_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "HEARTBEAT_SECONDS", 0.3)

    async def work() -> None:
        async with system(bank(), tmp_path, lost_after=0.3) as live:
            snapshot = await live.snapshot()
            incarnation = live.incarnation
            live.kill("b", signal.SIGSTOP)
            await live.incarnation_after(incarnation)
            assert money(verified(live, await live.snapshot())) == 3000
            assert snapshot in live.store.list()

    run(work)


def test_a_system_that_was_stopped_goes_on_from_its_last_snapshot(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(bank(), tmp_path) as live:
            first = await live.snapshot()
            turns = _turns(verified(live, first))
        async with system(bank(), tmp_path) as live:
            assert live.incarnation == 2
            second = verified(live, await live.snapshot())
            assert second.snapshot > first
            assert money(second) == 3000
            assert all(_turns(second)[node] >= turn for node, turn in turns.items())

    run(work)


def _turns(loaded: Loaded) -> dict[NodeId, int]:
    return {node: decode_plain(state)["turn"] for node, state in loaded.states.items()}


def _backs(loaded: Loaded) -> dict[NodeId, int]:
    return {node: decode_plain(state)["back"] for node, state in loaded.states.items()}


def test_a_running_system_goes_back_to_an_older_snapshot(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(bank(cls=Returning), tmp_path) as live:
            old = verified(live, await live.snapshot())
            while _turns(verified(live, await live.snapshot()))[NodeId("a")] < _turns(old)[NodeId("a")] + 500:
                await asyncio.sleep(0.01)
            await live.restore(old.snapshot)
            again = verified(live, await live.snapshot())
            assert money(again) == 3000
            assert _backs(again) == _turns(old)

    run(work)


def test_a_death_right_after_a_rollback_does_not_bring_back_what_was_rolled_back(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(bank(cls=Returning), tmp_path) as live:
            old = verified(live, await live.snapshot())
            while _turns(verified(live, await live.snapshot()))[NodeId("a")] < _turns(old)[NodeId("a")] + 500:
                await asyncio.sleep(0.01)
            await live._running().restore(lambda: old)  # without the snapshot that follows it as a rule
            incarnation = live.incarnation
            live.kill("a")
            await live.incarnation_after(incarnation)
            assert _backs(verified(live, await live.snapshot())) == _turns(old)

    run(work)


def test_timers_run_on_after_a_restore(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(bank(cls=SlowAccount), tmp_path) as live:
            before = _turns(verified(live, await live.snapshot()))
            live.kill("a")
            await live.incarnation_after(1)
            # A slow account sends for its timer alone.
            while any(turn < before[n] + 100 for n, turn in _turns(verified(live, await live.snapshot())).items()):
                await asyncio.sleep(0.01)

    run(work)


def test_a_savepoint_brings_up_another_system_elsewhere(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(bank(), tmp_path / "one") as live:
            await live.snapshot(Kind.SAVEPOINT, directory=tmp_path / "saved")
        shutil.move(tmp_path / "saved", tmp_path / "moved")
        shutil.rmtree(tmp_path / "one")
        async with system(bank(), tmp_path / "two", restore=str(tmp_path / "moved")) as live:
            loaded = verified(live, await live.snapshot())
            assert money(loaded) == 3000
            assert min(_turns(loaded).values()) > 0

    run(work)


def test_restoring_onto_another_topology_is_refused_and_names_the_difference(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(bank("abc"), tmp_path) as live:
            await live.snapshot()
        with pytest.raises(Misuse, match=r"does not fit bank: node c is not in the topology"):
            await system(bank("ab"), tmp_path).start()
        with pytest.raises(Misuse, match="node d is not in the snapshot"):
            await system(bank("abcd"), tmp_path).start()
        load(live.store, SnapshotId(1), bank("abc").graph)  # untouched

    run(work)


def test_a_handler_that_always_fails_ends_the_system_with_its_reason(tmp_path: Path) -> None:
    topology = Topology("stumble", tuple(NodeSpec(NodeId(n), Stumbler) for n in "ab"), joined(("a", "b")))

    async def work() -> None:
        live = system(topology, tmp_path, max_restarts=2)
        with pytest.raises(Failed, match=r"node b ended 3 times .*: a handler failed: RuntimeError: stumbled"):
            async with live:
                await live.incarnation_after(100)

    run(work)


def test_what_a_process_prints_goes_to_its_log_and_never_blocks_it(tmp_path: Path) -> None:
    topology = Topology("talk", (NodeSpec(NodeId("a"), Talker, params={"lines": 3000}),))

    async def work() -> None:
        async with system(topology, tmp_path, logs=tmp_path / "logs") as live:
            await live.snapshot()

    run(work)
    assert (tmp_path / "logs" / "a.log").read_text().count("a long line") == 3000


def test_a_port_in_use_is_named_and_nothing_is_left_running(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        nodes = (NodeSpec(NodeId("a"), Account), NodeSpec(NodeId("b"), Account, f"127.0.0.1:{port}"))

        async def work() -> None:
            live = system(Topology("bank", nodes), tmp_path)
            with pytest.raises(Failed, match=f"Node b cannot listen on 127.0.0.1:{port}"):
                await live.start()
            assert all(process.returncode is not None for process in live._processes.values())

        run(work)


def test_params_that_the_class_does_not_take_are_named(tmp_path: Path) -> None:
    async def work() -> None:
        with pytest.raises(Failed, match=r"Node a: Account cannot be made from params .*'colour'"):
            await system(bank("a", colour="red"), tmp_path).start()

    run(work)


def test_one_home_runs_a_system_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(bank("ab"), tmp_path):
            with pytest.raises(Misuse, match="runs already"):
                await system(bank("ab"), tmp_path).start()

    run(work)

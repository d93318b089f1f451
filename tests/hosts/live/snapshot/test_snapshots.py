"""Snapshots of real processes that never stop."""

from __future__ import annotations

import asyncio
import gc
import itertools
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from strobe.cli.main import cli
from strobe.hosts.live.api.codec import decode_plain
from strobe.hosts.live.api.topology import NodeSpec, Topology, joined
from strobe.hosts.live.coordinator.coordinator import LiveCoordinator
from strobe.hosts.live.journal.merge import merge_to_file
from strobe.hosts.live.node.options import NodeOptions
from strobe.model.errors import Failed, Misuse
from strobe.model.ids import NodeId
from strobe.model.kind import Kind
from strobe.verify.consistency import check_journal
from strobe.verify.journal import Journal, read_journal
from tests.support.live.apps import Account, Big, Counter, Curious, Huge, Impatient, SlowAccount, Unwritable
from tests.support.live.systems import bank, money, run, settings, system, verified


def test_a_bank_under_load_keeps_its_money_in_every_snapshot(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(bank("abcd"), tmp_path) as live:
            in_flight = 0
            for _ in range(25):
                loaded = verified(live, await live.snapshot())
                assert money(loaded) == 4000
                in_flight += sum(map(len, loaded.contents.values()))
            assert in_flight > 0, "nothing was ever in flight: the test shows nothing"

    run(work)


def test_snapshots_taken_at_once_and_started_anywhere_are_all_consistent(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(bank(), tmp_path, settings=settings(max_concurrent=6)) as live:
            starts = [(), ("a",), ("b",), ("c",), ("a", "c"), ("b",)]
            taken = await asyncio.gather(
                *(
                    live.snapshot(Kind.SAVEPOINT, initiators=s, directory=tmp_path / str(i))
                    for i, s in enumerate(starts)
                )
            )
            assert len(set(taken)) == 6
            for i in range(6):
                result = CliRunner().invoke(cli, ["verify", str(tmp_path / str(i))])
                assert result.exit_code == 0, result.output
            assert money(verified(live, await live.snapshot(initiators=["b"]))) == 3000

    run(work)


def test_a_clock_that_moves_on_between_two_looks_at_it_disturbs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = itertools.count()
    monkeypatch.setattr(LiveCoordinator, "now", lambda self: next(looks))

    async def work() -> None:
        troubles: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: troubles.append(context))
        async with system(bank(), tmp_path, settings=settings(interval=20)) as live:
            while len(live.store.list()) < 3:
                await asyncio.sleep(0.02)
        assert troubles == []

    run(work)


def test_an_end_in_the_middle_of_snapshots_is_a_quiet_one(tmp_path: Path) -> None:
    async def work() -> None:
        troubles: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: troubles.append(context))
        for turn in range(5):
            home = tmp_path / str(turn)
            async with system(bank(), home, settings=settings(interval=1, retained=1, max_concurrent=3)) as live:
                while len(live.store.list()) == 0:
                    await asyncio.sleep(0.002)
            assert live.store.list()
        gc.collect()  # a task that failed unseen says so when it goes
        assert troubles == []

    run(work)


def test_coroutine_handlers_are_never_cut_in_the_middle(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(bank(cls=SlowAccount, burst=5), tmp_path) as live:
            for _ in range(10):
                assert money(verified(live, await live.snapshot())) == 3000

    run(work)


def test_periodic_snapshots_come_by_themselves_and_old_ones_go(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(bank(), tmp_path, settings=settings(interval=20, retained=2)) as live:
            while not (there := live.store.list()) or there[-1] < 6:
                await asyncio.sleep(0.01)
        there = live.store.list()
        assert len(there) <= 3
        assert money(verified(live, there[-1])) == 3000

    run(work)


def test_a_large_state_is_written_by_a_copy_while_the_process_goes_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(bank("ab", Big), tmp_path) as live:
            snapshot = await live.snapshot()
            manifest = live.store.load(snapshot)
            assert all(node.extra["forked"] for node in manifest.nodes.values())
            loaded = verified(live, snapshot)
            assert money(loaded) == 2000
            for node, state in loaded.states.items():
                # Each receipt counts once in the ballast: the copy is of one moment.
                received = sum(manifest.nodes[node].inputs.values())
                assert sum(decode_plain(state)["ballast"].values()) == received

    run(work)


def test_a_state_larger_than_the_window_comes_whole_every_time(tmp_path: Path) -> None:
    topology = Topology("huge", (NodeSpec(NodeId("a"), Huge),))

    async def work() -> None:
        async with system(topology, tmp_path) as live:
            for _ in range(5):
                loaded = verified(live, await live.snapshot())
                assert len(decode_plain(loaded.states[NodeId("a")])["table"]) == 20_000
            live.kill("a")
            await live.incarnation_after(1)
            assert verified(live, await live.snapshot()).states == loaded.states

    run(work)


@pytest.mark.parametrize("cls", [Curious, Impatient])
def test_a_process_can_ask_for_a_snapshot_itself(tmp_path: Path, cls: type[Account]) -> None:
    async def work() -> None:
        async with system(bank(cls=cls), tmp_path) as live:
            while len(live.store.list()) < 3:
                await asyncio.sleep(0.01)
            for snapshot in live.store.list():
                assert money(verified(live, snapshot)) == 3000

    run(work)


def test_small_states_are_written_on_the_spot(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(bank("ab"), tmp_path) as live:
            manifest = live.store.load(await live.snapshot())
            assert not any(node.extra["forked"] for node in manifest.nodes.values())

    run(work)


def test_a_state_that_cannot_be_written_names_the_field_and_the_system_runs_on(tmp_path: Path) -> None:
    topology = Topology("odd", (NodeSpec(NodeId("a"), Unwritable), NodeSpec(NodeId("b"), Account)))

    async def work() -> None:
        async with system(topology, tmp_path) as live:
            with pytest.raises(Failed, match=r"a declined: Field 'inner.handle' of the state of a"):
                await live.snapshot()
            assert live.store.list() == ()
            assert (await live.status()).running

    run(work)


def test_a_node_that_hangs_costs_one_snapshot_and_the_next_one_completes(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(bank(), tmp_path, settings=settings(timeout=1500), lost_after=60.0) as live:
            live.kill("b", signal.SIGSTOP)
            with pytest.raises(Failed, match=r"not complete within 1500 ms: no word from .*b"):
                await live.snapshot()
            live.kill("b", signal.SIGCONT)
            while True:
                try:
                    snapshot = await live.snapshot()
                    break
                except Failed:  # what piled up while it hung takes a while on a busy machine
                    continue
            assert money(verified(live, snapshot)) == 3000
            assert live.incarnation == 1

    run(work)


def test_nothing_is_lost_repeated_or_reordered_under_back_pressure(tmp_path: Path) -> None:
    topology = Topology(
        "count", tuple(NodeSpec(NodeId(n), Counter, params={"limit": 60_000}) for n in "ab"), joined(("a", "b"))
    )
    options = NodeOptions(b"0123456789abcdef", window=4096)

    async def work() -> None:
        async with system(topology, tmp_path, options=options) as live:
            seen = 0
            while seen < 60_000:
                loaded = verified(live, await live.snapshot())
                seen = decode_plain(loaded.states[NodeId("b")])["seen"]
                sent = decode_plain(loaded.states[NodeId("a")])["next"]
                content = [decode_plain(item)[1] for item in next(iter(loaded.contents.values()))]
                assert content == list(range(seen + 1, sent + 1))

    run(work)


def test_the_journal_of_a_run_verifies_and_so_does_the_command_line(tmp_path: Path) -> None:
    topology = bank(burst=2, seconds=0.005)

    async def work() -> None:
        async with system(topology, tmp_path, journal=True) as live:
            for _ in range(3):
                await live.snapshot()
            assert live.journal is not None
            journal_parts.append(live.journal)

    journal_parts: list[Path] = []
    run(work)
    merge_to_file(journal_parts[0], topology.graph, "bank", tmp_path / "run.journal")
    journal = Journal(*read_journal(tmp_path / "run.journal"))
    report = check_journal(journal)
    assert report.ok, report.sentence
    assert len(report.snapshots) == 3
    assert report.received > 0
    result = CliRunner().invoke(
        cli, ["sim", "verify", str(tmp_path / "run.journal"), "--svg", str(tmp_path / "run.svg")]
    )
    assert result.exit_code == 0, result.output
    assert (tmp_path / "run.svg").read_text().startswith("<svg")


def test_inspect_and_verify_read_a_live_snapshot(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(bank(), tmp_path) as live:
            await live.snapshot()

    run(work)
    shown = CliRunner().invoke(cli, ["inspect", "bank", "--home", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "chandy-lamport" in shown.output
    assert shown.output.count('"balance": ') == 3  # a channel is named only if something is in flight on it
    checked = CliRunner().invoke(cli, ["verify", "bank/1", "--home", str(tmp_path)])
    assert checked.exit_code == 0, checked.output


def test_an_initiator_from_which_not_everyone_can_be_reached_is_refused(tmp_path: Path) -> None:
    topology = Topology("line", tuple(NodeSpec(NodeId(n), Account) for n in "ab"), joined(("b", "a")))

    async def work() -> None:
        async with system(topology, tmp_path) as live:
            with pytest.raises(Misuse, match="never reaches b"):
                await live.snapshot(initiators=["a"])
            with pytest.raises(Misuse, match="no node 'x'"):
                await live.snapshot(initiators=["x"])
            await live.snapshot(initiators=["b"])

    run(work)

"""Networks that misbehave: everything between the nodes passes through one of the test's own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from strobe.hosts.live.api.codec import decode_plain
from strobe.hosts.live.api.topology import NodeSpec, Topology, joined
from strobe.hosts.live.node.options import NodeOptions
from strobe.hosts.live.system.system import System
from strobe.model.errors import Failed
from strobe.model.ids import NodeId
from tests.support.live.apps import Counter
from tests.support.live.proxies import network
from tests.support.live.systems import bank, money, run, settings, system, verified

COUNT = Topology("count", tuple(NodeSpec(NodeId(name), Counter) for name in "ab"), joined(("a", "b")))


async def seen(live: System) -> int:
    """How far b has counted; it fails if anything was lost, repeated or reordered."""
    return int(decode_plain(verified(live, await live.snapshot()).states[NodeId("b")])["seen"])


def test_connections_that_break_in_the_middle_of_a_frame_lose_and_repeat_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with network(COUNT, seed=21) as between, system(between.topology, tmp_path) as live:
            before = await seen(live)
            for _ in range(15):
                passed = between.passed
                while between.passed < passed + 3:
                    await asyncio.sleep(0.001)
                between.break_connections()
            assert between.cut >= 10
            while await seen(live) <= before:
                pass
            assert live.incarnation == 1

    run(work)


def test_a_slow_network_makes_snapshots_slow_and_not_wrong(tmp_path: Path) -> None:
    async def work() -> None:
        async with network(bank(), seed=22) as between, system(between.topology, tmp_path) as live:
            between.delay = 0.05
            in_flight = 0
            for _ in range(5):
                loaded = verified(live, await live.snapshot())
                assert money(loaded) == 3000
                in_flight += sum(map(len, loaded.contents.values()))
            assert in_flight > 0

    run(work)


def test_a_snapshot_across_a_partition_times_out_and_the_next_one_after_it_is_whole(tmp_path: Path) -> None:
    async def work() -> None:
        impatient = settings(timeout=700)
        async with network(bank(), seed=23) as between, system(between.topology, tmp_path, settings=impatient) as live:
            assert money(verified(live, await live.snapshot())) == 3000
            between.partition("a", "bc")
            with pytest.raises(Failed, match="not complete within 700 ms"):
                await live.snapshot()
            between.heal()
            while True:
                try:
                    snapshot = await live.snapshot()
                    break
                except Failed:  # connections need a moment to come back
                    continue
            assert money(verified(live, snapshot)) == 3000
            assert live.incarnation == 1, "a network that was split for a while is no reason to go back"

    run(work)


def test_a_node_killed_behind_a_partition_comes_back_when_the_network_does(tmp_path: Path) -> None:
    async def work() -> None:
        async with network(bank(), seed=24) as between, system(between.topology, tmp_path) as live:
            assert money(verified(live, await live.snapshot())) == 3000
            between.partition("c", "ab")
            live.kill("c")
            await live.incarnation_after(1)
            between.heal()
            assert money(verified(live, await live.snapshot())) == 3000

    run(work)


def test_connections_that_fall_silent_are_noticed_and_replaced_and_nothing_is_lost_or_repeated(tmp_path: Path) -> None:
    """Half-open connections: one pair hears nothing of each other any more, of another only one side does not."""
    nodes = tuple(NodeSpec(NodeId(name), Counter) for name in "abcd")
    pairs = Topology("pairs", nodes, joined(("a", "b"), ("c", "d")))

    async def work() -> None:
        async with network(pairs, seed=26) as between, system(between.topology, tmp_path) as live:

            async def counted() -> dict[str, int]:
                """Completes only when markers pass; the counters fail if anything is lost, repeated or reordered."""
                states = verified(live, await live.snapshot()).states
                return {node: decode_plain(states[NodeId(node)])["seen"] for node in "bd"}

            before = await counted()
            assert between.silence("a", "b") == 1
            assert between.silence("c", "d", both_ways=False) == 1
            dropped = between.dropped
            first = await counted()
            while not all(count > first[node] for node, count in (await counted()).items()):
                await asyncio.sleep(0.05)
            assert all(first[node] > before[node] for node in "bd")
            assert between.dropped > dropped
            assert between.cut == 0, "the network ended no connection: the nodes did"
            assert live.incarnation == 1
            assert (await live.status()).aborted == {}

    run(work)


def test_back_pressure_works_through_a_slow_network(tmp_path: Path) -> None:
    options = NodeOptions(b"0123456789abcdef", window=20_000)

    async def work() -> None:
        async with network(COUNT, seed=25) as between, system(between.topology, tmp_path, options=options) as live:
            between.delay = 0.02
            for _ in range(3):
                await seen(live)
            figures = (await live.status()).nodes[NodeId("a")]
            assert max(figures.unacknowledged.values()) <= 20_000 + (1 << 17)

    run(work)


# ── real namespaces: separate network stacks, joined by a wire that loses and delays ────────────────────────────────


def sh(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=10)


@pytest.fixture
def spaces() -> Iterator[dict[str, tuple[str, str]]]:
    """Two namespaces, a wire between them and this one, with netem if there is: node → (namespace, address)."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("needs root, ip and tc")
    tag = f"s{os.getpid() % 100_000}"
    found = {}
    try:
        sh("ip", "link", "add", f"{tag}br", "type", "bridge")
        sh("ip", "addr", "add", "10.231.77.1/24", "dev", f"{tag}br")
        sh("ip", "link", "set", f"{tag}br", "up")
        for number, node in enumerate("ab", 2):
            space, wire = f"{tag}{node}", f"{tag}{node}"
            sh("ip", "netns", "add", space)
            sh("ip", "link", "add", f"{wire}0", "type", "veth", "peer", "name", f"{wire}1", "netns", space)
            sh("ip", "link", "set", f"{wire}0", "master", f"{tag}br", "up")
            sh("ip", "-n", space, "addr", "add", f"10.231.77.{number}/24", "dev", f"{wire}1")
            sh("ip", "-n", space, "link", "set", f"{wire}1", "up")
            sh("ip", "-n", space, "link", "set", "lo", "up")
            netem = ["tc", "-n", space, "qdisc", "add", "dev", f"{wire}1", "root", "netem"]
            done = subprocess.run([*netem, "delay", "5ms", "3ms", "loss", "2%"], capture_output=True, check=False)
            print("netem:", done.stderr.decode() or "on")  # a kernel without it still has the namespaces
            found[node] = (space, f"10.231.77.{number}")
        yield found
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"network namespaces cannot be made here: {getattr(error, 'stderr', b'')!r}")
    finally:
        for node in "ab":
            subprocess.run(["ip", "netns", "del", f"{tag}{node}"], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", f"{tag}br"], capture_output=True, check=False)


@pytest.mark.parametrize("protocol", ["chandy-lamport", "lai-yang"])
def test_nodes_in_namespaces_of_their_own_with_a_wire_between_them(
    tmp_path: Path, spaces: dict[str, tuple[str, str]], protocol: str
) -> None:
    base = bank("ab")
    topology = replace(
        base,
        nodes=tuple(replace(n, address=f"{spaces[n.name][1]}:7001", remote=True) for n in base.nodes),
        protocol=protocol,
    )
    options = NodeOptions(b"0123456789abcdef", path=(str(Path(__file__).parents[4]),))

    async def work() -> None:
        nodes = []
        try:
            for name, (space, _) in spaces.items():
                command = ["ip", "netns", "exec", space, sys.executable, "-m", "strobe.hosts.live.node.main"]
                process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE)
                assert process.stdin is not None
                process.stdin.write(json.dumps(options.to_json(topology, name)).encode() + b"\n")
                nodes.append(process)
            async with system(topology, tmp_path, options=options) as live:
                for _ in range(5):
                    assert money(verified(live, await live.snapshot())) == 2000
        finally:
            for process in nodes:
                assert process.stdin is not None
                process.stdin.close()
                await process.wait()

    run(work)

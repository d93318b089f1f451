"""A service that knows nothing of Strobe, attached from outside: examples/live/chat."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from strobe.hosts.live.api.attach import AttachedReader
from strobe.hosts.live.api.codec import decode_plain
from strobe.hosts.live.api.topology import read_topology
from strobe.hosts.live.snapshot.snapshots import Loaded
from strobe.model.ids import ChannelId, NodeId
from tests.support.live.systems import run, settings, system, verified

TOPOLOGY = Path(__file__).parents[4] / "examples" / "live" / "chat" / "chat.toml"


def lines(loaded: Loaded, source: str, target: str) -> list[str]:
    """What is between the two services: on the channel, and read by nobody at its end."""
    unread = state(loaded, target)["connections"].get(source, [None, b""])[1]
    carried = [decode_plain(item)[1] for item in loaded.contents[ChannelId(f"{source}-{target}")]]
    text: str = (unread + b"".join(piece for piece in carried if isinstance(piece, bytes))).decode()
    assert not text or text.endswith("\n")
    return text.splitlines()


def state(loaded: Loaded, node: str) -> dict[str, Any]:
    found: dict[str, Any] = decode_plain(loaded.states[NodeId(node)])
    return found


def judge(loaded: Loaded) -> int:
    """Everything that was said is in the hub's history or on its way there, once and in order; and so back."""
    history = state(loaded, "hub")["state"]["history"]
    for name in ("anna", "ben"):
        robot = state(loaded, name)["state"]
        mine = [line for line in history if line.startswith(name)] + lines(loaded, name, "hub")
        assert mine == [f"{name}: line {n}" for n in range(1, robot["said"] + 1)]
        coming = [int(line.split()[0]) for line in lines(loaded, "hub", name)]
        if robot["heard"]:  # it hears everything from its first line on
            assert coming == list(range(robot["heard"] + 1, len(history) + 1))
    return len(history)


def test_an_attached_service_is_recorded_whole_while_it_talks(tmp_path: Path) -> None:
    topology = read_topology(TOPOLOGY)

    async def work() -> None:
        async with system(topology, tmp_path) as live:
            said = [judge(verified(live, await live.snapshot())) for _ in range(12)]
            assert said[-1] > said[0]

    run(work)


def test_an_attached_service_goes_on_after_a_kill_with_nothing_lost_or_said_twice(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(read_topology(TOPOLOGY), tmp_path, settings=settings()) as live:
            for victim in ("hub", "anna"):
                before = judge(verified(live, await live.snapshot()))
                incarnation = live.incarnation
                live.kill(victim)
                await live.incarnation_after(incarnation)
                while judge(verified(live, await live.snapshot())) <= before:
                    await asyncio.sleep(0.02)

    run(work)


def test_a_reader_knows_what_nobody_has_read() -> None:
    async def work() -> None:
        reader = AttachedReader()
        reader.feed_data(b"one\ntwo\nth")
        assert await reader.readline() == b"one\n"
        assert reader.unread() == b"two\nth"
        kept = AttachedReader()
        kept.keep(b"one\n")
        kept.feed_data(b"two\n")
        assert kept.unread() == b"one\ntwo\n"
        kept.give()
        assert await kept.readline() == b"one\n"

    run(work)

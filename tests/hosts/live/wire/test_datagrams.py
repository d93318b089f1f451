"""Channels over datagrams: each item once, in no order, whatever the network does; and snapshots over them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.hosts.live.api.codec import (
    count_item,
    count_of,
    decode_message,
    encode_message,
    is_stamped,
    number_of,
    stamp_of,
    stamped_item,
    unstamped,
)
from strobe.hosts.live.api.process import Process
from strobe.hosts.live.api.topology import Topology
from strobe.hosts.live.journal.merge import merge_to_file
from strobe.hosts.live.node.options import NodeOptions
from strobe.hosts.live.snapshot.reading import read_cut
from strobe.hosts.live.system.system import System
from strobe.hosts.live.wire.datagrams import LARGEST, Ack, Data, Incoming, Outgoing, Sealer, new_key
from strobe.hosts.live.wire.tls import Tls
from strobe.model.errors import Failed, Misuse
from strobe.model.ids import SnapshotId
from strobe.verify.consistency import check_journal
from strobe.verify.journal import Journal, read_journal
from tests.support.live.apps import Account, Shouter, SlowAccount, Transfer
from tests.support.live.commandline import EXAMPLES, Terminal, up
from tests.support.live.proxies import Udp, network
from tests.support.live.systems import bank, money, run, settings, system, verified

# ── the session ─────────────────────────────────────────────────────────────────────────────────────────────────────


def exchange(seed: int, items: list[bytes], *, loss: float, window: int = 1 << 20) -> tuple[list[bytes], Outgoing, int]:
    """Both ends joined in memory by a network that loses, repeats and reorders; time runs as fast as it can."""
    dice = random.Random(seed)
    out, into, got = Outgoing(window), Incoming(), list[bytes]()
    now, most = 0.0, 0
    air: list[Callable[[], None]] = []
    waiting = list(items)

    def arrives(number: int, batch: list[bytes]) -> None:
        if into.take(number):
            got.extend(batch)
        floor, above = into.state()
        if dice.random() >= loss:
            air.append(lambda: out.acknowledged(floor, above, now))

    while waiting or not out.idle:
        while waiting and not out.congested:
            out.send(waiting.pop(0))
        for number, batch in out.due(now):
            for _ in range(dice.choice((0, 1, 1, 1, 2)) if loss else 1):
                air.append(lambda number=number, batch=batch: arrives(number, batch))  # type: ignore[misc]
        most = max(most, len(air))
        dice.shuffle(air)
        for _ in range(min(len(air), 20)):
            air.pop()()
        now += 0.01
        assert now < 10_000, f"seed {seed}: it never ends"
    return got, out, most


@pytest.mark.parametrize("seed", range(8))
def test_each_item_comes_once_whatever_is_lost_repeated_or_reordered(seed: int) -> None:
    items = [b"%d" % number + bytes(random.Random(number).randrange(300)) for number in range(2000)]
    got, out, _ = exchange(seed, items, loss=0.2)
    assert sorted(got) == sorted(items), f"seed {seed}"
    assert got != items, "it never reordered: the test shows nothing"
    assert out.resent > 0


def test_a_network_that_loses_nothing_is_not_asked_twice() -> None:
    items = [b"%d" % number for number in range(5000)]
    got, out, _ = exchange(1, items, loss=0.0)
    assert sorted(got) == sorted(items)
    assert out.resent == 0


def test_what_is_on_its_way_and_what_is_remembered_stays_bounded() -> None:
    out, into = Outgoing(1 << 30), Incoming()
    for number in range(500_000):
        out.send(b"%d" % number)
    sent = out.due(0.0)
    assert 0 < len(sent) <= 64
    for number, _ in sent[1:]:  # the first is lost for ever: nothing may run away from it
        into.take(number)
    for turn in range(1, 300):
        out.acknowledged(*into.state(), now=turn / 10)
        for number, _ in out.due(turn / 10):
            if number > 1:
                into.take(number)
    floor, above = into.state()
    assert floor == 0
    assert max(above) <= 2048
    assert not into.take(1_000_000)


def test_an_acknowledgement_of_what_was_never_sent_is_not_believed() -> None:
    out = Outgoing(1000)
    out.send(b"x")
    out.due(0.0)
    out.acknowledged(5, [], 0.1)
    out.acknowledged(0, [7], 0.1)
    assert not out.idle
    out.acknowledged(1, [], 0.1)
    assert out.idle


@given(st.binary(max_size=200))
def test_a_datagram_without_the_seal_is_nobody(data: bytes) -> None:
    assert Sealer(bytes(32)).open(data) is None


@given(st.integers(0, 200), st.integers(1, 255))
def test_a_datagram_with_one_changed_byte_is_nobody(where: int, change: int) -> None:
    sealer = Sealer(new_key(b"key", b"token", 3))
    data = bytearray(sealer.seal(Data(3, "a-b", 9, [b"one", b"two"])))
    data[where % len(data)] ^= change
    assert sealer.open(bytes(data)) is None


def test_a_seal_is_worth_nothing_in_another_life() -> None:
    sealed = Sealer(new_key(b"key", b"token", 3)).seal(Ack(3, "a-b", 1, []))
    for other in (new_key(b"key", b"token", 4), new_key(b"key", b"other", 3), new_key(b"yek", b"token", 3)):
        assert Sealer(other).open(sealed) is None


@given(st.integers(0, 2**63), st.integers(0, 2**63), st.integers(0, 2**63))
def test_stamped_messages_and_counts_are_told_apart_and_come_back(number: int, stamp: int, amount: int) -> None:
    item = encode_message(Transfer(amount - 2**62))
    sent = stamped_item(item, number, stamp)
    assert is_stamped(sent)
    assert count_of(sent) is None
    assert (number_of(sent), stamp_of(sent), unstamped(sent)) == (number, stamp, item)
    assert decode_message(unstamped(sent)) == Transfer(amount - 2**62)
    count = count_item(SnapshotId(number), stamp)
    assert not is_stamped(count)
    assert count_of(count) == (number, stamp)


# ── whole systems ───────────────────────────────────────────────────────────────────────────────────────────────────


def unordered(names: str = "abc", cls: type[Process] = Account, **params: int) -> Topology:
    return replace(bank(names, cls, **params), protocol="lai-yang")


ROUGH = Udp(loss=0.05, repeat=0.05, delay=0.02, garbage=0.02)


@pytest.mark.parametrize("cls", [Account, SlowAccount])
def test_money_is_conserved_while_the_network_reorders_loses_and_repeats(tmp_path: Path, cls: type[Account]) -> None:
    async def work() -> None:
        async with network(unordered("abc", cls, burst=5), seed=11) as between:
            between.udp = ROUGH
            async with system(between.topology, tmp_path, journal=True) as live:
                for _ in range(8):
                    assert money(verified(live, await live.snapshot())) == 3000
                assert live.journal is not None
                parts.append(live.journal)
            assert between.dropped > 0

    parts: list[Path] = []
    run(work)
    merge_to_file(parts[0], unordered().graph, "bank", tmp_path / "run.journal", "lai-yang")
    journal = Journal(*read_journal(tmp_path / "run.journal"))
    report = check_journal(journal)
    assert report.ok, report.sentence
    assert len(report.snapshots) == 8
    order = [event.seq for event in journal.events if type(event).__name__ == "Received" and event.channel == "a-b"]  # type: ignore[union-attr]
    assert order != sorted(order), "it never reordered: the test shows nothing"


def test_a_crash_over_a_rough_network_loses_nothing_of_the_last_snapshot(tmp_path: Path) -> None:
    async def work() -> None:
        async with network(unordered(), seed=12) as between:
            between.udp = ROUGH
            async with system(between.topology, tmp_path, settings=settings(max_concurrent=3)) as live:
                for victim in "ab":
                    assert money(verified(live, await live.snapshot())) == 3000
                    incarnation = live.incarnation
                    live.kill(victim)
                    await live.incarnation_after(incarnation)
                    assert money(verified(live, await live.snapshot())) == 3000
                last = live.store.list()[-1]
                await live.restore(last)
                assert money(verified(live, await live.snapshot(initiators=["c"]))) == 3000
            async with system(between.topology, tmp_path) as again:
                assert money(verified(again, await again.snapshot())) == 3000

    run(work)


def test_a_partition_delays_a_snapshot_and_nothing_else(tmp_path: Path) -> None:
    async def work() -> None:
        async with network(unordered(), seed=13) as between, system(between.topology, tmp_path) as live:
            await live.snapshot()
            between.partition("a", "bc")
            task = asyncio.ensure_future(live.snapshot())
            while not between.dropped:
                await asyncio.sleep(0.01)
            between.heal()
            assert money(verified(live, await task)) == 3000
            assert live.incarnation == 1

    run(work)


def test_datagrams_and_tls_do_not_go_together(tmp_path: Path) -> None:
    options = NodeOptions(b"0123456789abcdef", tls=Tls("cert", "key", "authority"))
    with pytest.raises(Misuse, match="Datagrams cannot be encrypted"):
        options.to_json(unordered(), "a")


def test_a_message_too_large_for_a_datagram_is_refused_before_it_is_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        topology = unordered("ab", Shouter, size=LARGEST + 1)
        live = System(topology, home=tmp_path, max_restarts=0)
        with pytest.raises(Failed, match="failed"):
            async with live:
                await live._or_failure(asyncio.sleep(20))

    run(work)
    assert "too large for one message" in caplog.text


# ── the command line ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_system_over_datagrams_through_all_commands(tmp_path: Path) -> None:
    strobe = Terminal(tmp_path)
    in_order = (EXAMPLES / "bank.toml").read_text().replace('"bank.py:', f'"{EXAMPLES}/bank.py:')
    (tmp_path / "in-order.toml").write_text(in_order)
    (tmp_path / "bank.toml").write_text(f'protocol = "lai-yang"\n{in_order}')
    with up(strobe, "bank.toml", "--interval", "0"):
        flying: list[int] = []
        while not flying:
            taken = strobe.ask("live", "snapshot", "--from", "cairo")
            cut = read_cut(f"bank/{taken['snapshot']}", strobe.home)
            flying = [message.payload["amount"] for content in cut.channels.values() for message in content]
            assert sum(state["balance"] for state in cut.states.values()) + sum(flying) == 4000
            assert taken["messages_in_flight"] == len(flying)
        strobe.ask("live", "kill", "berlin")
        done = strobe.ask("live", "restore", "bank", str(taken["snapshot"]))
        assert strobe.ask("live", "status")["incarnation"] == done["incarnation"] > 1
        assert {node["state"] for node in strobe.ask("live", "status")["nodes"]} == {"running"}
        last = strobe.ask("live", "down")["snapshot"]
    assert strobe("verify", f"bank/{last}").code == 0
    refused = strobe("live", "up", "in-order.toml", "--json")
    assert refused.code == 2
    assert "was taken with lai-yang, and bank is to run with chandy-lamport" in refused.json["error"]["what"]
    assert strobe.ask("live", "up", "bank.toml", "--for", "0.2")["snapshot"] > last

"""Processes that the benchmarks of live systems run, and how they are run."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strobe.hosts.live.api.codec import decode_plain, message
from strobe.hosts.live.api.process import Process
from strobe.hosts.live.api.topology import NodeSpec, Topology, complete, joined
from strobe.hosts.live.snapshot.snapshots import Loaded, load
from strobe.hosts.live.system.system import System
from strobe.model.ids import NodeId, SnapshotId
from strobe.protocol.coordinator.messages import CoordinatorSettings
from strobe.store.consistency import check_manifest

COUNTS = "STROBE_BENCH_COUNTS"


def say_count(count: Callable[[], int]) -> None:
    """From now on a SIGUSR1 adds a line to a file of this process: its count, its processor time, and the time, all
    taken at one moment. The variable COUNTS names the directory."""
    place = os.environ.get(COUNTS)
    if place is not None:

        def say(*_: object) -> None:
            with Path(place, str(os.getpid())).open("a") as file:
                file.write(f"{count()} {time.process_time()} {time.monotonic()}\n")

        signal.signal(signal.SIGUSR1, say)


@message
@dataclass(frozen=True, slots=True)
class Coin:
    amount: int


@dataclass
class Branch(Process):
    """Pays its peers in turn, as fast as they take it; it may pay on everything that it gets."""

    balance: int = 1_000_000
    turn: int = 0
    burst: int = 100
    seconds: float = 0.002

    def on_start(self) -> None:
        self.every(self.seconds)

    def on_timer(self, name: str) -> None:
        for _ in range(self.burst):
            if self.balance:
                self.turn += 1
                self.balance -= 1
                self.send(self.peers[self.turn % len(self.peers)], Coin(1))

    def on_message(self, sender: str, message: Any) -> None:
        self.balance += message.amount


@dataclass
class Pump(Process):
    """Sends as fast as its channel takes it."""

    sent: int = 0
    burst: int = 500

    def on_start(self) -> None:
        say_count(lambda: self.sent)
        self.every(0.0002)

    def on_timer(self, name: str) -> None:
        to = self.peers[0]
        for _ in range(self.burst):
            self.send(to, Coin(1))
        self.sent += self.burst


@dataclass
class ListPump(Pump):
    """The same, with its messages in lists."""

    def on_timer(self, name: str) -> None:
        self.send_all(self.peers[0], [Coin(1) for _ in range(self.burst)])
        self.sent += self.burst


@dataclass
class Drain(Process):
    received: int = 0

    def on_start(self) -> None:
        say_count(lambda: self.received)

    def on_message(self, sender: str, message: Any) -> None:
        self.received += message.amount


@dataclass
class Ballast(Branch):
    """A branch with a state of the given number of megabytes, in small pieces."""

    megabytes: float = 0.0
    table: dict[str, bytes] = field(default_factory=dict)

    def on_start(self) -> None:
        dice = random.Random(self.name)
        self.table = {f"key-{i}": dice.randbytes(100) for i in range(int(self.megabytes * 9000))}
        super().on_start()


def bank(nodes: int, cls: type[Process] = Branch, protocol: str = "chandy-lamport", **params: Any) -> Topology:
    names = [f"n{i}" for i in range(1, nodes + 1)]
    return Topology("bank", tuple(NodeSpec(NodeId(n), cls, params=params) for n in names), complete(names), protocol)


def pair(pump: type[Process] = Pump) -> Topology:
    return Topology("pair", (NodeSpec(NodeId("a"), pump), NodeSpec(NodeId("b"), Drain)), joined(("a", "b")))


@asynccontextmanager
async def running(topology: Topology, **changes: Any) -> AsyncIterator[System]:
    """With a home of its own, which is deleted afterwards."""
    options = {"timeout": 60_000, "tolerable_failures": 1_000_000, "retained": 3, **changes}
    with tempfile.TemporaryDirectory(prefix="strobe-bench-") as home:
        async with System(
            topology,
            home=Path(home),
            settings=CoordinatorSettings(**options),
            max_restarts=1_000_000,
        ) as system:
            yield system


def verified(system: System, snapshot: SnapshotId) -> Loaded:
    faults = [*system.store.verify(snapshot), *check_manifest(system.store.load(snapshot))]
    if faults:
        raise AssertionError(f"snapshot {snapshot}: {faults[0]}")
    return load(system.store, snapshot, system.topology.graph)


def money(loaded: Loaded) -> int:
    held: int = sum(decode_plain(state)["balance"] for state in loaded.states.values())
    flying: int = sum(decode_plain(item)[1]["amount"] for items in loaded.contents.values() for item in items)
    return held + flying

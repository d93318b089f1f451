"""Processes that the tests of replaying run: types that JSON does not have, coroutines, and some that play dice."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

from strobe.hosts.live.api.codec import message
from strobe.hosts.live.api.process import Process


@message
@dataclass(frozen=True, slots=True)
class Parcel:
    data: bytes
    weights: dict[int, float]


@dataclass
class Odd(Process):
    """Bytes, keys that are numbers, sets, and plain messages that JSON does not have or that look like a class."""

    seen: dict[int, bytes] = field(default_factory=dict)
    kinds: set[int] = field(default_factory=set)
    best: tuple[int, float] = (0, float("inf"))
    count: int = 0

    def on_start(self) -> None:
        self.every(0.002)

    def on_timer(self, name: str) -> None:
        self.count += 1
        plain: list[Any] = [bytes([self.count % 256]), {"type": "Parcel", "data": "no"}, {self.count: b"x"}, "text"]
        self.send(self.peers[0], plain[self.count % 4])
        self.send(self.peers[0], Parcel(bytes([self.count % 256]), {self.count: self.count / 2}))

    def on_message(self, sender: str, message: Any) -> None:
        self.kinds.add(len(type(message).__name__))
        if isinstance(message, Parcel):
            for key, weight in message.weights.items():
                self.seen[key % 5] = message.data
                self.best = min(self.best, (key, weight), key=lambda pair: pair[1])
        elif isinstance(message, bytes):
            self.count += message[0] % 2


@dataclass
class Patient(Process):
    """Handlers that sleep."""

    total: int = 0

    async def on_start(self) -> None:
        await asyncio.sleep(0)
        self.every(0.005)

    async def on_timer(self, name: str) -> None:
        self.total += 1
        await asyncio.sleep(0.001)
        self.send(self.peers[0], self.total)

    async def on_message(self, sender: str, message: Any) -> None:
        await asyncio.sleep(0.002)
        self.total += message % 3


@dataclass
class Gambler(Process):
    """What it sends is thrown."""

    won: int = 0

    def on_start(self) -> None:
        self.every(0.002)

    def on_timer(self, name: str) -> None:
        self.send(self.peers[0], random.randrange(1_000_000_000))

    def on_message(self, sender: str, message: Any) -> None:
        self.won += message % 10


@dataclass
class Secretive(Gambler):
    """What it sends is always the same; what it keeps is thrown. Only a snapshot can show that."""

    luck: int = 0

    def on_timer(self, name: str) -> None:
        self.send(self.peers[0], 7)

    def on_message(self, sender: str, message: Any) -> None:
        self.luck = random.randrange(1_000_000_000)

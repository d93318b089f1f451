"""Processes that the tests run: small applications with an invariant that any inconsistent cut breaks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from strobe.hosts.live.api.codec import message
from strobe.hosts.live.api.process import Process


@message
@dataclass(frozen=True, slots=True)
class Transfer:
    amount: int


@dataclass
class Account(Process):
    """Sends money to its peers in turn, all the time. The total never changes."""

    balance: int = 1000
    turn: int = 0
    burst: int = 20
    seconds: float = 0.001

    def on_start(self) -> None:
        self.every(self.seconds)

    def on_timer(self, name: str) -> None:
        for _ in range(self.burst if self.peers else 0):
            amount = min(self.balance, 1 + self.turn % 7)
            if amount:
                self.pay(amount)

    def on_message(self, sender: str, message: Any) -> None:
        self.balance += message.amount
        if self.balance % 3 == 0 and self.peers:
            self.pay(message.amount)

    def pay(self, amount: int) -> None:
        self.balance -= amount
        self.turn += 1
        self.send(self.peers[self.turn % len(self.peers)], Transfer(amount))


@dataclass
class Returning(Account):
    """The same, and remembers where it was when it was last restored."""

    back: int = -1

    def on_restore(self) -> None:
        self.back = self.turn


@dataclass
class SlowAccount(Account):
    """The same with coroutine handlers that are interrupted between taking and giving."""

    async def on_message(self, sender: str, message: Any) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self.balance += message.amount
        await asyncio.sleep(0)


@dataclass
class Big(Account):
    """Carries a large state that every message touches."""

    ballast: dict[str, int] = field(default_factory=dict)

    def on_start(self) -> None:
        self.ballast = {f"key-{i}": 0 for i in range(200_000)}
        super().on_start()

    def on_message(self, sender: str, message: Any) -> None:
        super().on_message(sender, message)
        self.ballast[f"key-{self.turn % 200_000}"] += 1


@dataclass
class Curious(Account):
    """Asks for a snapshot itself when it has been paid often enough."""

    asked: bool = False

    def on_message(self, sender: str, message: Any) -> None:
        super().on_message(sender, message)
        if self.turn > 50 and not self.asked:
            self.asked = True
            self.request_snapshot()


@dataclass
class Impatient(Account):
    """Asks for a snapshot before anything else."""

    def on_start(self) -> None:
        self.request_snapshot()
        super().on_start()


@dataclass
class Huge(Process):
    """A state of several windows, so that its pieces have to wait on their way."""

    table: dict[str, bytes] = field(default_factory=dict)

    def on_start(self) -> None:
        self.table = {f"key-{i}": bytes(1000) for i in range(20_000)}


@dataclass
class Unwritable(Process):
    inner: dict[str, Any] = field(default_factory=dict)

    def on_start(self) -> None:
        self.inner = {"handle": object()}


@dataclass
class Counter(Process):
    """Counts upwards to its peer as fast as it may; the other end checks that none is lost, repeated or reordered."""

    next: int = 0
    seen: int = 0
    limit: int = 1_000_000_000

    def on_start(self) -> None:
        if self.peers:
            self.every(0.0005)

    def on_timer(self, name: str) -> None:
        for _ in range(200):
            if self.next < self.limit:
                self.next += 1
                self.send(self.peers[0], self.next)

    def on_message(self, sender: str, message: Any) -> None:
        if message != self.seen + 1:
            raise ValueError(f"{message} came after {self.seen}")
        self.seen = message


@dataclass
class Stumbler(Process):
    """Fails on the first message that it gets, every time."""

    def on_start(self) -> None:
        if self.peers:
            self.send(self.peers[0], "hello")

    def on_message(self, sender: str, message: Any) -> None:
        raise RuntimeError("stumbled")


@dataclass
class Shouter(Process):
    """Says one thing, of the size that it is told."""

    size: int = 0

    def on_start(self) -> None:
        self.send(self.peers[0], bytes(self.size))


@dataclass
class Talker(Process):
    """Prints a lot, as people do who want to see what happens."""

    lines: int = 0

    def on_start(self) -> None:
        for _ in range(self.lines):
            print("a long line".ljust(100, "."))

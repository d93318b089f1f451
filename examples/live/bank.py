"""Branches of a bank send each other money, all the time. Every snapshot shows the same total.

strobe live up bank.toml
"""

from __future__ import annotations

from dataclasses import dataclass

from strobe.hosts.live import Process, message


@message
@dataclass(frozen=True, slots=True)
class Transfer:
    amount: int


@dataclass
class Branch(Process):
    balance: int = 1000
    transfers: int = 0
    pause: float = 0.005

    def on_start(self) -> None:
        self.every(self.pause)

    def on_timer(self, name: str) -> None:
        amount = 1 + self.transfers % 7
        if self.balance >= amount:
            self.balance -= amount
            self.transfers += 1
            self.send(self.peers[self.transfers % len(self.peers)], Transfer(amount))

    def on_message(self, sender: str, message: Transfer) -> None:
        self.balance += message.amount

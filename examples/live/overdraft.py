"""A shop and a depot may each go below zero for a moment, until the bank has lent them money. Never both at once.

They buy in turn, half a second apart, so no snapshot shows both below zero. But nothing makes them take turns:

strobe live up overdraft.toml --journal --for 3
strobe live journal overdraft run.journal
strobe predicate possibly 'shop.balance < 0 and depot.balance < 0' run.journal --topology overdraft.toml
"""

from __future__ import annotations

from dataclasses import dataclass

from strobe.hosts.live import Process, message


@message
@dataclass(frozen=True, slots=True)
class Ask:
    amount: int


@message
@dataclass(frozen=True, slots=True)
class Loan:
    amount: int


@dataclass
class Buyer(Process):
    """Buys for more than it has, and borrows the rest."""

    balance: int = 30
    bought: int = 0
    first: float = 0.5  # seconds until it buys for the first time

    def on_start(self) -> None:
        self.after(self.first, "buy")

    def on_timer(self, name: str) -> None:
        self.bought += 1
        self.balance -= 40
        if self.balance < 0:
            self.send("bank", Ask(30 - self.balance))
        self.after(1.0, "buy")

    def on_message(self, sender: str, message: Loan) -> None:
        self.balance += message.amount


@dataclass
class Bank(Process):
    lent: int = 0

    def on_message(self, sender: str, message: Ask) -> None:
        self.lent += message.amount
        self.send(sender, Loan(message.amount))


def both_below(cut) -> bool:  # type: ignore[no-untyped-def]
    """What must not happen; `strobe live check overdraft overdraft.py:both_below` checks it on a snapshot."""
    return all(cut.states[name]["balance"] < 0 for name in ("shop", "depot"))

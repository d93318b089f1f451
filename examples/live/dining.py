"""Five philosophers who deadlock after a while, and are caught.

Each keeps one fork, which the neighbour on the left uses, too. A hungry philosopher takes this fork if it is there,
reaches over to the right, and asks for the other one. With each meal they think for a shorter time. Sooner or later
all have taken their own fork, and each waits for the next, for ever. No philosopher can see that, but a snapshot can.
`waits_for` says what a philosopher waits for; a fork that is on its way counts as given.

    strobe live up -d dining.toml
    strobe live check dining deadlock --every 0.2
"""

from __future__ import annotations

from dataclasses import dataclass

from strobe.hosts.live import Process, Wait, all_of, message


@message
@dataclass(frozen=True, slots=True)
class Ask:
    """May I have your fork?"""


@message
@dataclass(frozen=True, slots=True)
class Give:
    """Here is my fork."""


@message
@dataclass(frozen=True, slots=True)
class Back:
    """Here is your fork."""


@dataclass
class Diner(Process):
    left: str
    right: str
    mood: str = "thinking"  # then hungry, reaching, waiting for the right fork, eating
    fork: str = ""  # who has this philosopher's own fork; nobody, if it is on the table
    asked: bool = False  # by the neighbour on the left
    meals: int = 0
    thinking: float = 1.0  # seconds, less with each meal
    seconds: float = 0.02  # that it takes to reach over; eating is quicker

    def on_start(self) -> None:
        self.think()

    def on_timer(self, name: str) -> None:
        if name == "hungry":
            self.mood = "hungry"
            self.take_fork()
        elif name == "reached":
            self.mood = "waiting"
            self.send(self.right, Ask())
        else:
            self.meals += 1
            self.mood, self.fork = "thinking", ""
            self.send(self.right, Back())
            self.give_fork()
            self.think()

    def on_message(self, sender: str, message: Ask | Give | Back) -> None:
        if isinstance(message, Give):
            self.mood = "eating"
            self.after(self.seconds / 4, "full")
        elif isinstance(message, Ask):
            self.asked = True
            self.give_fork()
        else:
            self.fork = ""
            self.take_fork()

    def think(self) -> None:
        """For a time that looks random, and is the same whenever the run is repeated: no two stay in step."""
        share = (self.meals * 7919 + sum(self.name.encode()) * 104729) % 97 / 97
        self.after((self.thinking / (1 + self.meals) + self.seconds) * share, "hungry")

    def take_fork(self) -> None:
        if self.mood == "hungry" and not self.fork:
            self.mood, self.fork = "reaching", self.name
            self.after(self.seconds, "reached")

    def give_fork(self) -> None:
        if self.asked and not self.fork:
            self.asked, self.fork = False, self.left
            self.send(self.left, Give())

    # ── asked of snapshots ──────────────────────────────────────────────────────────────────────────────────────────

    def waits_for(self) -> Wait | None:
        if self.mood == "waiting":
            return all_of(self.right, what="its fork")
        return all_of(self.left, what="my fork back") if self.mood == "hungry" else None

    def is_grant(self, sender: str, message: Ask | Give | Back) -> bool:
        return not isinstance(message, Ask)

    def holds(self) -> list[str]:
        own = ["its own fork"] if self.fork == self.name else []
        return own + ([f"the fork of {self.right}"] if self.mood == "eating" else [])

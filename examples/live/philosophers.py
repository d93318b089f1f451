"""Five philosophers share five forks, the way Chandy and Misra (1984) taught them to.

Nobody starves. No snapshot shows a fork in two places, or two neighbours who eat.

Each pair of neighbours shares a fork and a request for it. Eating makes all forks dirty. A
philosopher who is asked for a dirty fork cleans it and gives it away, except while eating; a clean fork is kept until
after the meal. At first all forks are dirty and with the neighbour whose name comes first, so there is no circle of
people who wait for each other.

    strobe live up philosophers.toml
"""

from __future__ import annotations

from dataclasses import dataclass, field

from strobe.hosts.live import Process, Wait, all_of, message


@message
@dataclass(frozen=True, slots=True)
class Fork:
    pass


@message
@dataclass(frozen=True, slots=True)
class Request:
    pass


@dataclass
class Philosopher(Process):
    mood: str = "thinking"
    forks: dict[str, str] = field(default_factory=dict)  # neighbour → "clean" or "dirty", for those that are here
    requests: list[str] = field(default_factory=list)  # the neighbours whose fork may be asked for, or who have asked
    meals: int = 0
    seconds: float = 0.005

    def on_start(self) -> None:
        for neighbour in self.peers:
            if self.name < neighbour:
                self.forks[neighbour] = "dirty"
            else:
                self.requests.append(neighbour)
        self.after(self.seconds, "hungry")

    def on_timer(self, name: str) -> None:
        if name == "hungry":
            self.mood = "hungry"
            for neighbour in self.peers:
                self.ask_for_fork(neighbour)
            self.eat_if_possible()
        else:
            self.mood = "thinking"
            self.meals += 1
            for asking in list(self.requests):
                self.give_fork(asking)
            self.after(self.seconds, "hungry")

    def on_message(self, sender: str, message: Fork | Request) -> None:
        if isinstance(message, Fork):
            self.forks[sender] = "clean"
            self.eat_if_possible()
        else:
            self.requests.append(sender)
            if self.mood != "eating":
                self.give_fork(sender)

    def eat_if_possible(self) -> None:
        if self.mood == "hungry" and len(self.forks) == len(self.peers):
            self.mood = "eating"
            self.forks = dict.fromkeys(self.forks, "dirty")
            self.after(self.seconds, "full")

    def ask_for_fork(self, neighbour: str) -> None:
        if neighbour not in self.forks and neighbour in self.requests:
            self.requests.remove(neighbour)
            self.send(neighbour, Request())

    def give_fork(self, neighbour: str) -> None:
        if self.forks.get(neighbour) == "dirty":
            del self.forks[neighbour]
            self.send(neighbour, Fork())
            if self.mood == "hungry":
                self.ask_for_fork(neighbour)

    # ── asked of snapshots: `strobe live check philosophers deadlock` never finds one ───────────────────────────────

    def waits_for(self) -> Wait | None:
        missing = [neighbour for neighbour in self.peers if neighbour not in self.forks]
        return all_of(*missing, what="the fork that we share") if self.mood == "hungry" else None

    def would_give(self, to: str) -> bool:
        return self.forks.get(to) == "dirty"

    def is_grant(self, sender: str, message: Fork | Request) -> bool:
        return isinstance(message, Fork)

    def holds(self) -> list[str]:
        return [f"the fork that it shares with {neighbour}" for neighbour in self.forks]

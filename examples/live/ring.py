"""A token goes round; the station that has it may work. Every snapshot has one token, at a station or between two.

The token counts its hops, and every station its own turns: in a consistent cut the two agree.

    strobe live up ring.toml
"""

from __future__ import annotations

from dataclasses import dataclass

from strobe.hosts.live import Process, message


@message
@dataclass(frozen=True, slots=True)
class Token:
    hops: int


@dataclass
class Station(Process):
    begins: bool = False
    token: int | None = None
    turns: int = 0
    seconds: float = 0.002

    def on_start(self) -> None:
        if self.begins:
            self.take(0)

    def on_message(self, sender: str, message: Token) -> None:
        self.take(message.hops)

    def take(self, hops: int) -> None:
        self.token = hops
        self.after(self.seconds, "done")

    def on_timer(self, name: str) -> None:
        assert self.token is not None
        self.turns += 1
        self.send(self.peers[0], Token(self.token + 1))
        self.token = None

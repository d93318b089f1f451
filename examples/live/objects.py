"""Objects that migrate between processes, and are collected when nobody can reach them.

Each site keeps objects, which refer to objects at any site, and has references of its own: its roots. Objects move to
other sites, references are handed over; at times the only reference to an object is in a message. An object that can be
reached from no root and from no message in flight is garbage, even in cycles across sites, and it stays garbage. That
is why it may be collected at any later time: the site that keeps it need not ask anybody.

    strobe live up -d objects.toml
    strobe live check objects garbage --json > garbage.json     # the sites read it, and let go what it names
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from strobe.hosts.live import Process, message


@message
@dataclass(frozen=True, slots=True)
class Handover:
    """A reference: whoever gets this has it, and its sender no longer does."""

    to: str

    def refs(self) -> list[str]:
        return [self.to]


@message
@dataclass(frozen=True, slots=True)
class Move:
    """An object that goes to live elsewhere, with all that it refers to. It brings no root."""

    name: str
    refers: list[str]

    def objects(self) -> dict[str, list[str]]:
        return {self.name: self.refers}


@dataclass
class Site(Process):
    kept: dict[str, list[str]] = field(default_factory=dict)  # object → what it refers to
    roots: list[str] = field(default_factory=list)
    made: int = 0
    collected: int = 0
    steps: int = 0
    seconds: float = 0.005
    most: int = 400  # objects that a site makes in all
    dead: str = "garbage.json"  # what `strobe live check objects garbage --json` has written

    def on_start(self) -> None:
        self.every(self.seconds, "step")
        self.every(0.1, "collect")

    def on_timer(self, name: str) -> None:
        if name == "collect":
            self.collect()
            return
        self.steps += 1
        what = self.steps * 7 % 5
        if what == 0 and self.made < self.most:
            self.made += 1
            new = f"{self.name}{self.made}"
            self.kept[new] = self.roots[-1:] if self.made % 3 else []
            self.roots.append(new)
        elif what == 1 and self.kept and self.roots:  # the oldest refers to the newest: this makes cycles
            self.kept[next(iter(self.kept))] = [self.roots[-1]]
        elif what == 2 and len(self.roots) > 2:
            self.send(self.peers[self.steps % len(self.peers)], Handover(self.roots.pop(0)))
        elif what == 3 and self.kept:
            moving = next(iter(self.kept))
            self.send(self.peers[self.steps % len(self.peers)], Move(moving, self.kept.pop(moving)))
        elif what == 4 and len(self.roots) > 4:
            del self.roots[0]

    def on_message(self, sender: str, message: Handover | Move) -> None:
        if isinstance(message, Handover):
            self.roots.append(message.to)
        else:
            self.kept[message.name] = message.refers

    def collect(self) -> None:
        """What was garbage in some snapshot is garbage now. It may have moved since: then its new keeper sees to it."""
        try:
            found = json.loads(Path(self.dead).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return  # nobody has looked yet, or the file is just being written
        for name in (name for names in found["garbage"].values() for name in names):
            if self.kept.pop(name, None) is not None:
                self.collected += 1

    # ── asked of snapshots ──────────────────────────────────────────────────────────────────────────────────────────

    def objects(self) -> dict[str, list[str]]:
        return self.kept

    def refs(self) -> list[str]:
        return self.roots

"""What goes wrong, planned from the seed before the run starts.

* *Lossy* and *duplicating* channels break what every protocol here rests on. They are for showing what breaks: the
  verifier names the message and the rule.
* *Partitions* and *slow nodes* only stretch time. They must never break anything.
* *Crashes* take a node down in the middle of whatever it does; the whole system then goes back to its last complete
  snapshot (see `strobe.hosts.sim.recovery`). They must never change the final result.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from strobe.hosts.sim.dice import Dice
from strobe.hosts.sim.network import Window
from strobe.model.cut import Json
from strobe.model.errors import Misuse
from strobe.model.graph import Graph
from strobe.model.ids import ChannelId, NodeId

__all__ = ["Faults", "Trouble", "plan_trouble"]

SLOWNESS = 8


@dataclass(frozen=True, slots=True)
class Faults:
    """How much of each. The first four are in thousandths, the others are numbers of faults."""

    lose: int = 0
    duplicate: int = 0
    lose_markers: int = 0
    duplicate_markers: int = 0
    partitions: int = 0
    slow: int = 0
    crashes: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            most = 1000 if field.name in _RATES else 1_000_000
            if type(value) is not int or not 0 <= value <= most:
                raise Misuse(
                    f"The fault {field.name.replace('_', '-')} cannot be {value!r}.",
                    next=f"Give a whole number from 0 to {most}"
                    + (", in thousandths." if field.name in _RATES else "."),
                )

    @property
    def any(self) -> bool:
        return self != Faults()

    @property
    def on_channels(self) -> bool:
        return any(getattr(self, name) for name in _RATES)

    def to_json(self) -> dict[str, Json]:
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name)}

    @classmethod
    def parse(cls, text: str) -> Faults:
        """`lose=20,crashes=1`: as it is written on the command line."""
        known = [f.name.replace("_", "-") for f in fields(cls)]
        values: dict[str, int] = {}
        for part in filter(None, (p.strip() for p in text.split(","))):
            name, _, number = part.partition("=")
            if name not in known:
                raise Misuse(f"There is no fault called {name!r}.", next=f"Choose from: {', '.join(known)}.")
            try:
                values[name.replace("-", "_")] = int(number or "1")
            except ValueError:
                raise Misuse(
                    f"The fault {name} needs a whole number, not {number!r}.", next=f"Write {name}=1, for example."
                ) from None
        return cls(**values)


_RATES = ("lose", "duplicate", "lose_markers", "duplicate_markers")


@dataclass(frozen=True)
class Trouble:
    """The faults of one run, with their times and victims."""

    windows: dict[ChannelId, tuple[Window, ...]]
    slow: tuple[NodeId, ...]
    crashes: tuple[tuple[int, NodeId], ...]


def plan_trouble(faults: Faults, graph: Graph, horizon: int, dice: Dice) -> Trouble:
    """Partitions cut a node's channels, or those between two halves, for a while; the rest strikes single nodes."""
    windows: dict[ChannelId, tuple[Window, ...]] = {}
    for _ in range(faults.partitions):
        start = dice.below(horizon)
        window = Window(start, start + 1 + horizon // 8 + dice.below(1 + horizon // 4))
        order = dice.shuffled(graph.nodes)
        side = frozenset(order[: 1 + dice.below(max(1, len(order) // 2))])
        for channel in graph.channels:
            if (channel.source in side) != (channel.target in side):
                windows[channel.id] = (*windows.get(channel.id, ()), window)
    slow = tuple(dice.shuffled(graph.nodes)[: faults.slow])
    first, span = horizon // 8, 1 + horizon * 3 // 4  # while something is going on, not at the very start or end
    crashes = sorted((first + dice.below(span), dice.pick(graph.nodes)) for _ in range(faults.crashes))
    return Trouble({c: tuple(sorted(w)) for c, w in windows.items()}, slow, tuple(crashes))

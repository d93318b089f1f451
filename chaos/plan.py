"""Which faults come, and when: a sequence that depends on a seed and not on the machine.

A fault is one of `KINDS`. A driver that starts may carry the name of a crash point at which it kills itself; points
come in a shuffled order without end, so that a long run visits each of them.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from strobe.hosts.spark.crash_points import POINTS

__all__ = ["CLOSING_POINTS", "KINDS", "WORKING_POINTS", "Birth", "Fault", "Kind", "Moment", "Plan"]

# What the ledger never does is left to the tests that do it: going back to a snapshot, rescaling, closing windows,
# holding rows back.
_ELSEWHERE: Final = ("restore.", "settle.", "rescale.", "drain.last-batch-", "verdict.", "release.")
CLOSING_POINTS: Final = tuple(
    p for p in POINTS if p.startswith(("drain.", "savepoint.", "stop.")) and not p.startswith(_ELSEWHERE)
)
WORKING_POINTS: Final = tuple(p for p in POINTS if p not in CLOSING_POINTS and not p.startswith(_ELSEWHERE))


class Moment(enum.Enum):
    """When a fault comes, counted from the one before."""

    AT_ONCE = "at once"  # whatever the job is doing: starting, most likely
    RUNNING = "running"  # when every stage runs
    CHECKPOINT = "checkpoint"  # when another checkpoint is complete


@dataclass(frozen=True, slots=True)
class Kind:
    """`kills`: it ends a process with SIGKILL. `lasts`: the least and the most seconds for which it lasts."""

    name: str
    what: str
    weight: int
    kills: bool = False
    lasts: tuple[float, float] = (0.0, 0.0)


KINDS: Final[Mapping[str, Kind]] = {
    kind.name: kind
    for kind in (
        Kind("kill driver", "SIGKILL to the driver's Python process; its JVM finds out by itself", 4, kills=True),
        Kind("kill machine", "SIGKILL to the driver, its JVM and its workers at once", 4, kills=True),
        Kind("kill executor", "SIGKILL to the JVM, which on a local master is the executor", 3, kills=True),
        Kind("kill worker", "SIGKILL to the Python workers of Spark", 4, kills=True),
        Kind("kill broker", "SIGKILL to Kafka, which starts again after a moment", 4, kills=True, lasts=(0.2, 5)),
        Kind(
            "kill postgres", "SIGKILL to all processes of Postgres, which starts again", 4, kills=True, lasts=(0.2, 5)
        ),
        Kind("kill generator", "SIGKILL to the generator of transfers", 1, kills=True),
        Kind("pause driver", "SIGSTOP to the driver and its JVM, then SIGCONT", 1, lasts=(1, 5)),
        Kind("pause broker", "SIGSTOP to Kafka, then SIGCONT", 1, lasts=(2, 12)),
        Kind("pause postgres", "SIGSTOP to Postgres, then SIGCONT", 1, lasts=(2, 12)),
        Kind(
            "replace driver", "SIGSTOP for longer than its lease; another takes over; it wakes again", 1, lasts=(7, 9)
        ),
        Kind("refuse kafka", "connections to Kafka are reset and refused", 1, lasts=(1, 10)),
        Kind("refuse postgres", "connections to Postgres are reset and refused", 1, lasts=(1, 10)),
        Kind("silence kafka", "nothing comes through to Kafka or from it", 1, lasts=(1, 12)),
        Kind("silence postgres", "nothing comes through to Postgres or from it", 1, lasts=(1, 12)),
        Kind("full disk", "no byte is left where the job's home and tables are", 1, lasts=(2, 10)),
        Kind("slow store", "each request to the store of checkpoints takes longer", 1, lasts=(4, 15)),
        Kind("refuse store", "the store of checkpoints refuses connections", 1, lasts=(2, 10)),
        Kind("clock jump", "the driver's wall clock jumps ahead, or back", 1),
    )
}


@dataclass(frozen=True, slots=True)
class Fault:
    """`lasts`: seconds. `amount`: a number in [0, 1) for what else the kind leaves open. `kill`: the driver is
    killed, too, while the fault lasts."""

    step: int
    kind: Kind
    moment: Moment
    wait: float
    lasts: float
    amount: float
    kill: bool


@dataclass(frozen=True, slots=True)
class Birth:
    """How a driver starts: with which checkpoints, and where it dies by itself: NAME or NAME:K, or nowhere."""

    mode: str
    point: str = ""


class Plan:
    def __init__(self, seed: int, without: Sequence[str] = (), points: Sequence[str] = WORKING_POINTS) -> None:
        """`without`: kinds that are not possible here. They are left out of the sequence, not postponed."""
        self._random = random.Random(f"faults of {seed}")
        self._starts = random.Random(f"starts of {seed}")
        self._kinds = [kind for kind in KINDS.values() if kind.name not in without]
        self._points = self._endless(points)

    def faults(self) -> Iterator[Fault]:
        step = 0
        while True:
            step += 1
            draw = self._random
            kind = draw.choices(self._kinds, [kind.weight for kind in self._kinds])[0]
            moment = draw.choices(list(Moment), (2, 4, 4))[0]
            yield Fault(
                step,
                kind,
                moment,
                wait=round(draw.uniform(0, 6 if moment is Moment.AT_ONCE else 2.5), 2),
                lasts=round(draw.uniform(*kind.lasts), 1),
                amount=draw.random(),
                kill=draw.random() < 0.3 and not kind.kills and kind.name not in ("pause driver", "replace driver"),
            )

    def start(self) -> Birth:
        """Of the next driver."""
        draw = self._starts
        mode = draw.choice(("aligned", "unaligned"))
        carries, time = draw.random() < 0.6, draw.choice((1, 1, 1, 2, 3))
        if not carries:
            return Birth(mode)
        name = next(self._points)
        return Birth(mode, name if time == 1 else f"{name}:{time}")

    def _endless(self, points: Sequence[str]) -> Iterator[str]:
        while True:
            order = list(points)
            self._starts.shuffle(order)
            yield from order

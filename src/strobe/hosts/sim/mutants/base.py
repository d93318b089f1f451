"""What a mutant is: a machine that breaks one rule of its protocol and keeps all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from strobe.hosts.sim.judge import ViolationKind

__all__ = ["Mutant"]


@dataclass(frozen=True)
class Mutant:
    name: str
    protocols: tuple[str, ...]  # the modes in which the rule matters; the first shows it best
    shows: ViolationKind  # how it is found out, where it matters most: in the first of the protocols
    machine: type[Any]  # with the constructor of the protocol's own machine
    rule: str  # what it breaks, in one sentence

"""The mutants by name: for each rule of each snapshot protocol, a machine that breaks exactly that rule."""

from __future__ import annotations

from strobe.hosts.sim.mutants.base import Mutant
from strobe.model.errors import Misuse

__all__ = ["MUTANTS", "Mutant", "mutant"]

MUTANTS: dict[str, Mutant] = {}


def mutant(name: str) -> Mutant:
    if name not in MUTANTS:
        raise Misuse(f"There is no mutant called {name!r}.", next=f"Choose one of: {', '.join(MUTANTS)}.")
    return MUTANTS[name]

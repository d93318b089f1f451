"""The mutants by name: for each rule of each snapshot protocol, a machine that breaks exactly that rule.

Law 8: every check can fail. Run a mutant through the same systems as the real machine and the verifier, a peer or the
count of markers must object; if none does, either the rule is not needed or the check does not work.
"""

from __future__ import annotations

from strobe.hosts.sim.mutants.barriers import BARRIERS
from strobe.hosts.sim.mutants.base import Mutant
from strobe.hosts.sim.mutants.chandy_lamport import CHANDY_LAMPORT
from strobe.hosts.sim.mutants.lai_yang import LAI_YANG
from strobe.model.errors import Misuse

__all__ = ["MUTANTS", "Mutant", "mutant"]

MUTANTS: dict[str, Mutant] = {m.name: m for m in (*CHANDY_LAMPORT, *LAI_YANG, *BARRIERS)}


def mutant(name: str) -> Mutant:
    if name not in MUTANTS:
        raise Misuse(f"There is no mutant called {name!r}.", next=f"Choose one of: {', '.join(MUTANTS)}.")
    return MUTANTS[name]

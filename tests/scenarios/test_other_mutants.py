"""A broken rule of two-phase commit, restore or termination detection changes the trace of some scenario."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.protocol import test_dijkstra_scholten, test_held_commits, test_restore, test_two_phase_commit
from tests.scenarios.commits import CommitWorld
from tests.scenarios.harness import BadScenario, Setup, World, play
from tests.scenarios.restores import RestoreWorld
from tests.scenarios.terminations import TerminationWorld
from tests.scenarios.test_scenarios import FILES

MUTANTS: dict[str, tuple[str, Callable[[Setup], World]]] = {
    **{m.__name__: ("commit", partial(CommitWorld, coordinator=m)) for m, *_ in test_two_phase_commit.COORDINATORS},
    **{m.__name__: ("commit", partial(CommitWorld, coordinator=m)) for m, *_ in test_held_commits.COORDINATORS},
    **{m.__name__: ("commit", partial(CommitWorld, participant=m)) for m, *_ in test_two_phase_commit.PARTICIPANTS},
    **{m.__name__: ("restore", partial(RestoreWorld, coordinator=m)) for m, *_ in test_restore.COORDINATORS},
    **{m.__name__: ("restore", partial(RestoreWorld, participant=m)) for m, *_ in test_restore.PARTICIPANTS},
    **{m.__name__: ("termination", partial(TerminationWorld, make=m)) for m in test_dijkstra_scholten.MUTANTS},
}
PROTOCOLS = {"commit": "two-phase-commit", "restore": "restore", "termination": "dijkstra-scholten"}


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_changes_a_trace(name: str) -> None:
    family, make = MUTANTS[name]
    texts = [path.read_text(encoding="utf-8") for path in FILES if path.stem.startswith(f"{family}-")]
    assert any(_changes(text, {PROTOCOLS[family]: make}) for text in texts), f"no scenario shows that {name} is wrong"


def _changes(text: str, worlds: dict[str, Any]) -> bool:
    try:
        return play(text, worlds) != text
    except (BadScenario, AssertionError, LookupError):
        return True  # it derails the scenario altogether

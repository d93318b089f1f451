"""The harness can fail: a changed protocol changes a trace, and a file that is not in the language is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from strobe.hosts.sim.mutants import MUTANTS, Mutant
from strobe.model.graph import Graph
from strobe.model.ids import NodeId
from strobe.protocol.barriers import BarrierMode
from tests.scenarios.harness import BadScenario, Setup, World, judge, play
from tests.scenarios.snapshots import KeyedMachine, SnapshotWorld
from tests.scenarios.test_scenarios import FILES
from tests.scenarios.worlds import WORLDS

SCENARIO = """# Shows nothing.
protocol chandy-lamport
channels p->q

initiate p 1
  p  record 1
  p  marker 1 on p->q
  p  part of 1 complete

# The marker:
deliver p->q
  q  record 1
  q  content of p->q in 1: empty
  q  part of 1 complete
"""
MODES = [mode.value for mode in BarrierMode]


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return tmp_path / "golden.txt"


def without_traces(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("  "))


def test_playing_gives_comments_commands_and_blank_lines_back_with_the_traces() -> None:
    assert play(without_traces(SCENARIO), WORLDS) == SCENARIO
    assert play(SCENARIO, WORLDS) == SCENARIO


def test_a_changed_trace_fails_and_the_diff_shows_the_lines(golden: Path) -> None:
    golden.write_text(SCENARIO.replace("q  record 1", "q  record 2"))
    problem = judge(golden, WORLDS)
    assert problem is not None
    assert "-  q  record 2" in problem
    assert "+  q  record 1" in problem


def test_a_file_without_traces_fails_and_says_so(golden: Path) -> None:
    golden.write_text(without_traces(SCENARIO))
    problem = judge(golden, WORLDS)
    assert problem is not None
    assert "no expected traces yet" in problem


def test_only_rewriting_writes_and_then_the_scenario_holds(golden: Path) -> None:
    golden.write_text(without_traces(SCENARIO))
    judge(golden, WORLDS)
    assert golden.read_text() == without_traces(SCENARIO)
    assert judge(golden, WORLDS, rewrite=True) is None
    assert golden.read_text() == SCENARIO
    assert judge(golden, WORLDS) is None


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("# Shows nothing.\n", "", "line 1: a scenario opens with a comment"),
        ("protocol chandy-lamport", "protocol telepathy", "'protocol NAME', with one of: chandy-lamport"),
        ("initiate p 1", "ponder p 1", "line 5, 'ponder p 1'"),
        ("initiate p 1", "initiate x 1", "no node 'x'"),
        ("deliver p->q", "deliver q->p", "no channel 'q->p'"),
        ("deliver p->q", "deliver p->q #2", "does not reorder"),
        ("initiate p 1", "initiate p", "line 5"),
    ],
)
def test_what_is_not_in_the_language_is_refused_with_its_line(old: str, new: str, complaint: str) -> None:
    with pytest.raises(BadScenario, match=complaint.replace("(", r"\(")):
        play(SCENARIO.replace(old, new), WORLDS)


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_every_mutant_of_a_snapshot_protocol_changes_a_trace(mutant: Mutant) -> None:
    """A rule that no scenario shows is a rule that a reviewer would not see broken."""
    worlds: dict[str, Callable[[Setup], World]] = {
        _family(name): partial(SnapshotWorld, make=partial(_mutated, mutant)) for name in mutant.protocols
    }
    texts = [path.read_text(encoding="utf-8") for path in FILES]
    mine = [text for text in texts if text.split("\nprotocol ", 1)[1].split()[0] in worlds]
    assert any(_changes(text, worlds) for text in mine), f"no scenario shows that {mutant.name} breaks: {mutant.rule}"


def _changes(text: str, worlds: dict[str, Callable[[Setup], World]]) -> bool:
    try:
        return play(text, worlds) != play(text, WORLDS)
    except (BadScenario, AssertionError, LookupError):
        return True  # it derails the scenario altogether


def _family(protocol: str) -> str:
    return "barriers" if protocol in MODES else protocol


def _mutated(mutant: Mutant, graph: Graph, node: NodeId, options: tuple[str, ...]) -> KeyedMachine:
    inputs, outputs = graph.inputs(node), graph.outputs(node)
    if not options:
        machine: KeyedMachine = mutant.machine(inputs, outputs)
        return machine
    feedback = [c for c in inputs if graph.by_id[c].feedback]
    barriers: KeyedMachine = mutant.machine(inputs, outputs, feedback=feedback, mode=BarrierMode(options[0]))
    return barriers

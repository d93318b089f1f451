"""`strobe predicate`: answers with witnesses, and one clear message for each kind of nonsense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from strobe.cli.main import cli
from strobe.hosts.sim.runner import SimConfig, run
from strobe.model.errors import StrobeError
from tests.support.journals import journal_bytes


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    journal = run(SimConfig("bank", seed=7)).journal
    assert journal is not None
    path = tmp_path_factory.mktemp("predicate") / "run.journal"
    path.write_bytes(journal_bytes(journal))
    return path


def ask(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(cli, ["predicate", *arguments, "--json"], catch_exceptions=False, standalone_mode=False)
    answer: dict[str, object] = json.loads(result.output)
    return answer


def test_a_sum_that_was_possible_comes_with_a_cut_in_which_it_held(journal: Path) -> None:
    answer = ask("possibly", "n1.balance + n2.balance < 1960", str(journal))
    assert answer["holds"] is True
    witness = answer["witness"]
    assert isinstance(witness, dict)
    states = witness["states"]
    assert states["n1"]["balance"] + states["n2"]["balance"] < 1960
    in_flight = sum(m[1] for messages in witness["in_flight"].values() for m in messages)
    assert sum(state["balance"] for state in states.values()) + in_flight == 4000, "money is conserved in the cut"


def test_the_fast_ways_and_the_walk_through_the_lattice_agree(journal: Path) -> None:
    """The same question three times: as a sum, hidden from the flow, and as a function in Python."""
    for bound in (1500, 1559, 1560, 1700):
        fast = ask("possibly", f"n1.balance + n2.balance < {bound}", str(journal))
        walked = ask("possibly", f"n1.balance + n2.balance < {bound} or n1.left < 0 and n2.left < 0", str(journal),
                     "--max-cuts", "3000000")  # fmt: skip
        assert (fast["method"], walked["method"]) == ("largest flow", "lattice")
        if walked["holds"] is not None:
            assert fast["holds"] == walked["holds"]


def test_a_condition_on_any_node_and_one_that_must_have_held(journal: Path) -> None:
    assert ask("possibly", "node.balance < 0", str(journal))["holds"] is False
    surely = ask("definitely", "n1.left == 0 and n2.left == 0", str(journal))
    assert surely["holds"] is True
    assert set(surely["intervals"]) == {"n1", "n2"}  # type: ignore[call-overload]
    avoided = ask("definitely", "n1.balance > 1000 and n2.balance > 1000 and n3.balance > 1000", str(journal))
    assert avoided["holds"] is False


def test_a_function_in_python_gets_the_whole_cut(journal: Path, tmp_path: Path) -> None:
    checks = tmp_path / "checks.py"
    checks.write_text("def busy(cut):\n    return sum(len(m) for m in cut.channels.values()) >= 3\n")
    answer = ask("possibly", f"{checks}:busy", str(journal))
    assert answer["holds"] is True
    witness = answer["witness"]
    assert isinstance(witness, dict)
    assert sum(len(messages) for messages in witness["in_flight"].values()) >= 3


def test_a_lattice_that_is_too_large_is_not_decided(journal: Path) -> None:
    answer = ask("possibly", "n1.balance + n2.balance == 1", str(journal), "--max-cuts", "1000")
    assert answer["holds"] is None


def test_expect_decides_the_exit_code(journal: Path) -> None:
    for expected, code in (("yes", 1), ("no", 0)):
        arguments = ["predicate", "possibly", "node.balance < 0", str(journal), "--expect", expected]
        assert CliRunner().invoke(cli, arguments, standalone_mode=False).return_value == code


def test_the_witness_is_drawn_as_a_cut(journal: Path, tmp_path: Path) -> None:
    picture = tmp_path / "run.svg"
    ask("possibly", "n1.balance + n2.balance < 1960", str(journal), "--svg", str(picture))
    assert "snapshot 2" in picture.read_text(), "the run has one snapshot; the witness is drawn as the next"


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        ("n1.balence < 3", "no 'balence'"),
        ("n9.balance < 3", "there is no node 'n9'"),
        ("n1.balance < 'x'", "TypeError"),
        ("nothing.py:f", "There is no file"),
    ],
)
def test_nonsense_gets_one_message(journal: Path, condition: str, why: str) -> None:
    with pytest.raises(StrobeError, match=why):
        ask("possibly", condition, str(journal))


def test_a_predicate_that_raises_names_the_cut(journal: Path, tmp_path: Path) -> None:
    checks = tmp_path / "checks.py"
    checks.write_text("def wrong(cut):\n    return cut.states['nobody']\n")
    with pytest.raises(StrobeError, match="at the cut after step 0 of n1"):
        ask("possibly", f"{checks}:wrong", str(journal))


def test_a_journal_cut_short_is_refused(journal: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.journal"
    short.write_bytes(journal.read_bytes()[:-300])
    with pytest.raises(StrobeError, match="breaks off"):
        ask("possibly", "node.balance < 0", str(short))

"""`strobe bisect`: the first snapshot at which an invariant is violated, asking few of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.look.bisecting import find_break
from strobe.model.ids import SnapshotId
from strobe.model.invariants import Outcome, Verdict
from strobe.store.layout import JobLayout
from strobe.store.verdicts import VerdictLog, read_verdicts
from tests.cli.conftest import Strobe
from tests.look.world import JOB, World

H, V, S, F = Outcome.HOLDS, Outcome.VIOLATED, Outcome.SKIPPED, Outcome.FAILED


class Answers:
    def __init__(self, outcomes: list[Outcome]) -> None:
        self.outcomes = outcomes
        self.asked: list[int] = []

    def __call__(self, snapshot: SnapshotId) -> Verdict:
        assert snapshot not in self.asked
        self.asked.append(snapshot)
        return Verdict("n", snapshot, self.outcomes[snapshot - 1])


def found(outcomes: list[Outcome]) -> tuple[int | None, int | None, list[int]]:
    result = find_break([SnapshotId(n + 1) for n in range(len(outcomes))], Answers(outcomes))
    good, bad = (None if v is None else int(v.snapshot) for v in (result.good, result.bad))
    return good, bad, [int(v.snapshot) for v in result.unknown]


def test_few_are_asked() -> None:
    answers = Answers([H] * 700 + [V] * 300)
    result = find_break([SnapshotId(n + 1) for n in range(1000)], answers)
    assert result.good is not None
    assert result.bad is not None
    assert (result.good.snapshot, result.bad.snapshot) == (700, 701)
    assert len(answers.asked) <= 12


@given(st.integers(1, 30), st.integers(1, 30), st.sets(st.integers(2, 59)))
def test_what_gives_no_answer_is_passed_over(holds: int, violated: int, failing: set[int]) -> None:
    outcomes = [H] * holds + [V] * violated
    for number in failing:
        if number < len(outcomes):  # both ends answer
            outcomes[number - 1] = F
    good, bad, unknown = found(outcomes)
    assert good == max(n for n, o in enumerate(outcomes, 1) if o is H)
    assert bad == min(n for n, o in enumerate(outcomes, 1) if o is V)
    assert unknown == list(range(good + 1, bad))


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([H, H, H], (3, None, [])),  # nothing is broken
        ([V, V, V], (None, 1, [])),  # it was broken already
        ([S, S, H, V], (3, 4, [])),  # the first ones are from before the stage ran
        ([S, S, V], (None, 3, [1, 2])),
        ([S, V, V], (None, 2, [1])),
        ([H, H, F], (None, None, [3])),  # the end does not answer
        ([F, H, V], (None, None, [1])),
        ([H, V], (1, 2, [])),
    ],
)
def test_ends_that_are_not_as_expected_are_said(
    outcomes: list[Outcome], expected: tuple[int | None, int | None, list[int]]
) -> None:
    assert found(outcomes) == expected


# ── the command, over snapshots that are on disk ────────────────────────────────────────────────────────────────────


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Six checkpoints: in the fifth the balance of account 7 falls below zero."""
    world = World(tmp_path)
    for seven in (1, 2, 3, 4, -5, -6):
        world.take({7: seven, 8: 1})
    return world


NEGATIVE = "select account, balance from state.balances where balance < 0"


def test_the_place_is_found_and_what_differs_is_shown(strobe: Strobe, world: World, tmp_path: Path) -> None:
    (tmp_path / "rules.sql").write_text(f"-- invariant: never below zero\n{NEGATIVE};\n-- invariant: other\nselect 1")
    home = ("--home", str(world.home))
    done = strobe("bisect", JOB, "--invariant", "never below zero", "-f", "rules.sql", *home)
    assert done.code == 0
    lines = done.out.splitlines()
    assert any(line.startswith("last good  ledger/4") for line in lines)
    assert any(line.startswith("first bad  ledger/5") and "account 7, balance -5" in line for line in lines)
    assert any(line.split() == ["state.balances", "2", "0", "0", "1"] for line in lines)
    told = strobe("bisect", JOB, "--sql", NEGATIVE, "--json", *home).json
    assert (told["found"], told["last_good"]["snapshot"], told["first_bad"]["snapshot"]) == (True, 4, 5)
    assert told["diff"]["tables"][0]["changed"] == 1
    assert told["evaluated"] <= 5
    assert strobe("bisect", JOB, "--sql", NEGATIVE, "--good", "2", "--bad", "5", "--json", *home).json["found"]


def test_what_is_noted_is_not_asked_again_unless_one_wishes(strobe: Strobe, world: World, tmp_path: Path) -> None:
    home = ("--home", str(world.home))
    log = VerdictLog(world.home, JOB)
    for number, outcome in ((1, H), (2, H), (3, V), (4, V)):  # not what a question would find
        log.append(Verdict("n", SnapshotId(number), outcome))
    told = strobe("bisect", JOB, "--invariant", "n", "--json", *home).json
    assert (told["last_good"]["snapshot"], told["first_bad"]["snapshot"], told["evaluated"]) == (2, 3, 0)
    (tmp_path / "rules.sql").write_text(f"-- invariant: n\n{NEGATIVE}")
    told = strobe("bisect", JOB, "--invariant", "n", "-f", "rules.sql", "--json", *home).json
    assert (told["last_good"]["snapshot"], told["first_bad"]["snapshot"]) == (4, 5)
    missing = strobe("bisect", JOB, "--invariant", "n", "--bad", "6", *home)
    assert (missing.code, "Nobody has asked checkpoint 6 yet." in missing.err) == (2, True)
    assert len(read_verdicts(world.home, JOB)) == 4


def test_a_place_that_is_not_there_is_exit_code_1(strobe: Strobe, world: World) -> None:
    home = ("--home", str(world.home))
    holds = strobe("bisect", JOB, "--sql", "select 1 where false", *home)
    assert (holds.code, "holds in snapshot 6" in holds.out) == (1, True)
    always = strobe("bisect", JOB, "--sql", "select 1 as x from state.balances", *home)
    assert (always.code, "it broke before that" in always.out) == (1, True)
    wrong = strobe("bisect", JOB, "--sql", "select nothing from state.balances", *home)
    assert (wrong.code, "could not be evaluated in snapshot 6" in wrong.out) == (1, True)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "It is not clear which invariant is meant."),
        (("--invariant", "n"), "No verdict on an invariant 'n' of job 'ledger' is noted."),
        (("--sql", "select 1", "-f", "x.sql"), "given twice"),
        (("--invariant", "m", "-f", "rules.sql"), "There is no invariant 'm' in rules.sql."),
        (("-f", "rules.sql"), "It is not clear which invariant is meant."),
        (("-f", "none.sql"), "'none.sql' cannot be read"),
        (("--sql", NEGATIVE, "--good", "9"), "--good 9: job 'ledger' does not retain a checkpoint 9."),
        (("--sql", NEGATIVE, "--good", "5", "--bad", "2"), "--good 5 is not before --bad 2."),
        (("--sql", NEGATIVE, "--bad", "1"), "Two checkpoints of job 'ledger' are needed"),
        (("--sql", "select * from state.balanses"), "there is no stage 'balanses'"),
        (("--sql", "selec"), "is not SQL"),
        (("--sql", NEGATIVE, "--signed-by", "strobe.pub"), "These options need --replay."),
    ],
)
def test_a_call_that_cannot_be_meant_is_refused(
    words: tuple[str, ...],
    why: str,
    strobe: Strobe,
    world: World,
    tmp_path: Path,
) -> None:
    (tmp_path / "rules.sql").write_text("-- invariant: n\nselect 1;\n-- invariant: o\nselect 2")
    done = strobe("bisect", JOB, *words, "--home", str(world.home))
    assert (done.code, done.out) == (2, "")
    assert why in done.err


def test_an_unknown_job_is_said(strobe: Strobe, world: World) -> None:
    done = strobe("bisect", "leger", "--sql", "select 1", "--home", str(world.home))
    assert (done.code, "There is no job 'leger'" in done.err) == (2, True)
    assert not (world.home / JobLayout("leger").root).exists()

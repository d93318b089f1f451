"""The Spark host under simulated schedules. A longer run: `python -m tests.hostsim --runs 100000`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hostsim.mutants import MUTANTS, PLANNED, UNALIGNED, late_triggers
from tests.hostsim.order_mutants import ORDER_MUTANTS
from tests.hostsim.plans import plan_of, shrink
from tests.hostsim.world import SHAPES, Break, Fault, Plan, run

RUNS = 24
_TRIES = 40  # most mutants are caught by the first


@pytest.mark.parametrize("part", range(4))
def test_whatever_breaks_when_the_laws_hold(part: int, pytestconfig: pytest.Config) -> None:
    """The seed is that of the run, if it has one: `--hypothesis-seed`."""
    given = pytestconfig.getoption("hypothesis_seed", None)
    seed = int(given) if str(given).isdecimal() else 1
    for number in range(part * RUNS // 4, (part + 1) * RUNS // 4):
        plan = plan_of(seed, number)
        assert not run(plan).violation, f"python -m tests.hostsim --seed {seed} --first {number} --runs 1\n{plan}"


@pytest.mark.parametrize("shape", SHAPES)
def test_a_job_without_faults_comes_to_its_end_with_one_driver(shape: str) -> None:
    outcome = run(Plan(3, shape=shape))
    assert not outcome.violation
    assert (outcome.drivers, outcome.snapshots > 1) == (1, True)


ALL_MUTANTS = {name: (mutant, Plan(0, faults=faults)) for name, (mutant, faults) in MUTANTS.items()}
ALL_MUTANTS |= PLANNED | ORDER_MUTANTS


def test_a_manifest_that_lands_in_an_epoch_that_was_left_is_none() -> None:
    fault = Fault(1, Break.SUSPEND, 300, at="put jobs/job/snapshots/chk-000003/manifest.json")
    landed = False
    for seed in range(_TRIES):  # another thread may find out first that its driver was given up
        outcome = run(Plan(seed, bucket=True, rows=4, faults=(fault,)), trace=True)
        assert not outcome.violation
        landed = any("driver-1/manifest-3: [store.manifest.after]" in line for line in outcome.trace)
        if landed:
            break
    assert landed


@pytest.mark.parametrize("name", ALL_MUTANTS)
def test_a_host_that_breaks_a_rule_is_caught(name: str) -> None:
    mutant, plan = ALL_MUTANTS[name]
    assert not run(plan).violation
    with contextlib.ExitStack() as broken:
        for replacement in mutant():
            broken.enter_context(replacement)
        assert any(run(replace(plan, seed=seed)).violation for seed in range(_TRIES))


@pytest.mark.parametrize("what", [Break.SAVEPOINT, Break.STOP_SAVING, Break.DRAIN])
@pytest.mark.parametrize("bucket", [False, True])
def test_an_order_of_a_healthy_job_is_carried_out(what: Break, bucket: bool) -> None:
    plan = Plan(3, shape="chain", bucket=bucket, faults=(Fault(300, what, size=1 if not bucket else 5),))
    outcome = run(plan, trace=True)
    assert not outcome.violation
    assert any("[savepoint.complete]" in step for step in outcome.trace)
    assert outcome.drivers == (1 if what is Break.SAVEPOINT else 2)


@pytest.mark.parametrize("name", UNALIGNED)
def test_a_host_that_breaks_a_rule_of_snapshots_that_start_everywhere_is_caught(name: str) -> None:
    kills = tuple(Fault(step, Break.KILL, at="[snapshot.announced") for step in (1, 300, 600))  # its cut is looked at
    plan = Plan(0, shape="chain", mode="unaligned", interval=0.05, faults=kills)
    with contextlib.ExitStack() as broken:
        broken.enter_context(late_triggers())
        assert not run(plan).violation
        for replacement in UNALIGNED[name]():
            broken.enter_context(replacement)
        assert any(run(replace(plan, seed=seed)).violation for seed in range(_TRIES))


def test_the_same_plan_gives_the_same_trace() -> None:
    plan = Plan(5, shape="join", faults=(Fault(300, Break.KILL), Fault(700, Break.POWER)))
    first = run(plan, trace=True)
    with Path(os.devnull).open():  # whatever else this process has open, and wherever its objects are
        assert run(plan, trace=True).trace == first.trace
    assert first.drivers > 1
    assert run(Plan(6, shape="join"), trace=True).trace != first.trace


def test_a_run_leaves_no_file_open(tmp_path: Path) -> None:
    """Of its own: other tests' threads open and close theirs in the same process."""
    for plan in (Plan(1, bucket=True), Plan(2, faults=(Fault(200, Break.SUSPEND, 50), Fault(400, Break.KILL)))):
        root = tmp_path / str(plan.seed)
        root.mkdir()
        run(plan, root)
        assert [path for path in open_files() if path.startswith(str(root))] == []


def open_files() -> Iterator[str]:
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            yield str(Path("/proc/self/fd", number).readlink())


def test_a_plan_that_fails_shrinks_to_what_it_fails_of() -> None:
    faults = tuple(Fault(step, what) for step, what in ((10, Break.SINK), (20, Break.KILL), (30, Break.STOP)))
    small = shrink(Plan(1, shape="diamond", rows=8, faults=faults), lambda p: faults[1] in p.faults)
    assert (small.faults, small.shape, small.rows) == ((faults[1],), "line", 1)

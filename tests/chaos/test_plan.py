"""Faults by seed."""

from __future__ import annotations

from itertools import islice

from chaos.plan import KINDS, WORKING_POINTS, Plan


def test_a_seed_decides_every_fault_and_every_point() -> None:
    plans = [Plan(7), Plan(7)]
    assert list(islice(plans[0].faults(), 200)) == list(islice(plans[1].faults(), 200))
    assert [plans[0].start() for _ in range(200)] == [plans[1].start() for _ in range(200)]
    assert list(islice(Plan(8).faults(), 200)) != list(islice(Plan(7).faults(), 200))


def test_a_long_run_has_every_kind_of_fault_and_every_point() -> None:
    plan = Plan(7)
    assert {fault.kind.name for fault in islice(plan.faults(), 400)} == set(KINDS)
    assert {plan.start().point.partition(":")[0] for _ in range(400)} - {""} == set(WORKING_POINTS)


def test_a_kind_that_cannot_be_had_never_comes() -> None:
    faults = islice(Plan(7, without=["full disk"]).faults(), 400)
    assert {fault.kind.name for fault in faults} == set(KINDS) - {"full disk"}

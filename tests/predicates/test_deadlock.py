"""Deadlock: all-of, any-of and k-of-n, grants in flight, and the part that waits for itself."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strobe.model.errors import Misuse
from strobe.predicates.deadlock import Wait, all_of, any_of, at_least, deadlock


def test_a_cycle_of_all_of_is_a_deadlock_and_is_named_with_those_behind_it() -> None:
    found = deadlock({"a": all_of("b"), "b": all_of("c", what="fork"), "c": all_of("a"), "d": all_of("a"), "e": None})
    assert found is not None
    assert found.processes == ("a", "b", "c", "d")
    assert found.core == ("a", "b", "c")
    assert str(found) == "Deadlock: a waits for b; b waits for c (fork); c waits for a."


def test_any_of_needs_a_knot_not_a_cycle() -> None:
    assert deadlock({"a": any_of("b", "c"), "b": any_of("a"), "c": None}) is None
    found = deadlock({"a": any_of("b", "c"), "b": any_of("a"), "c": any_of("b")})
    assert found is not None
    assert found.core == ("a", "b", "c")


def test_k_of_n_is_met_by_k() -> None:
    waits = {"a": at_least(2, "b", "c", "d"), "b": all_of("a"), "c": None, "d": None}
    assert deadlock(waits) is None
    found = deadlock({**waits, "d": all_of("a")})
    assert found is not None
    assert set(found.processes) == {"a", "b", "d"}


def test_a_grant_in_flight_counts_as_given() -> None:
    waits: dict[str, Wait | None] = {"a": all_of("b"), "b": all_of("a")}
    assert deadlock(waits, [("a", "b")]) is None
    assert deadlock(waits, [("c", "b")]) is not None, "somebody else's grant is of no use"


def test_waiting_for_somebody_who_is_not_there_is_waiting_for_ever() -> None:
    found = deadlock({"a": all_of("gone"), "b": None})
    assert found is not None
    assert found.core == ("a",)


def test_nonsense_is_refused() -> None:
    for wrong in ((3, ("a", "b")), (-1, ("a",)), (1, ("a", "a"))):
        with pytest.raises(Misuse):
            Wait(*wrong)


NAMES = tuple("abcdef")


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_the_stuck_are_the_largest_set_of_which_nobody_can_be_helped_from_outside(data: st.DataObject) -> None:
    """By the definition: a set is stuck if each member's need cannot be met by grants and by processes outside."""
    waits: dict[str, Wait | None] = {}
    for name in NAMES[: data.draw(st.integers(1, 6))]:
        of = data.draw(st.lists(st.sampled_from([n for n in NAMES if n != name]), unique=True))
        waits[name] = data.draw(st.none() | st.builds(Wait, st.integers(0, len(of)), st.just(tuple(of))))
    grants = set(data.draw(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=4)))

    def is_stuck(members: tuple[str, ...]) -> bool:
        for member in members:
            wait = waits[member]
            if wait is None:
                return False
            helpers = sum((g, member) in grants or (g in waits and g not in members) for g in wait.of)
            if helpers >= wait.need:
                return False
        return True

    sets = [m for size in range(len(waits) + 1) for m in combinations(waits, size) if is_stuck(m)]
    largest = max(sets, key=len)
    found = deadlock(waits, grants)
    assert (found.processes if found else ()) == largest
    if found:
        assert set(found.core) <= set(found.processes)
        assert is_stuck(found.core)


def test_a_long_chain_of_waits_is_no_problem() -> None:
    count = 5_000
    waits: dict[str, Wait | None] = {f"p{i}": all_of(f"p{(i + 1) % count}") for i in range(count)}
    found = deadlock(waits)
    assert found is not None
    assert len(found.core) == count

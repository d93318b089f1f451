"""Garbage: what no root and no message in flight leads to."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from strobe.predicates.garbage import garbage


def test_a_cycle_that_nobody_holds_is_garbage() -> None:
    assert garbage({1: [2], 2: [1], 3: [1]}, roots=[3]).objects == frozenset()
    assert garbage({1: [2], 2: [1], 3: []}, roots=[3]).objects == {1, 2}


def test_a_reference_in_flight_keeps_its_object_and_what_that_leads_to() -> None:
    heap = {"moving": ["inner"], "inner": [], "other": []}
    assert garbage(heap, roots=[], in_flight=["moving"]).objects == {"other"}
    assert garbage(heap, roots=[], in_flight=[]).objects == {"moving", "inner", "other"}, "forgotten, it would go"


def test_a_reference_to_nothing_is_told() -> None:
    found = garbage({"a": ["gone"]}, roots=["a"])
    assert found.dangling == {"gone"}


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.integers(0, 9), st.lists(st.integers(0, 9)), max_size=10),
    st.lists(st.integers(0, 9), max_size=3),
    st.lists(st.integers(0, 9), max_size=3),
)
def test_garbage_is_what_paths_from_roots_do_not_reach(
    heap: dict[int, list[int]], roots: list[int], in_flight: list[int]
) -> None:
    used = {*roots, *in_flight}
    for _ in heap:  # as many rounds as the longest path without repetition
        used |= {to for one in used for to in heap.get(one, ())}
    found = garbage(heap, roots, in_flight)
    assert found.objects == set(heap) - used
    assert found.dangling == used - set(heap)

"""Every detector against brute force over all consistent cuts of random runs."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from strobe.predicates.computation import Computation, Positions
from strobe.predicates.conjunctive import definitely_all, possibly_all
from strobe.predicates.lattice import Bounds, cuts, definitely, possibly
from strobe.predicates.sums import smallest_sum
from tests.predicates.computations import all_cuts, computations, holds_definitely, labels

RUNS = settings(max_examples=400, deadline=None)


@RUNS
@given(computations())
def test_the_lattice_has_every_consistent_cut_once(run: Computation) -> None:
    walked = list(cuts(run))
    assert len(walked) == len(set(walked))
    assert set(walked) == set(all_cuts(run))


@RUNS
@given(computations())
def test_the_clock_of_a_state_is_the_smallest_consistent_cut_that_has_it(run: Computation) -> None:
    found = all_cuts(run)
    for node, length in enumerate(run.lengths):
        for state in range(length + 1):
            having = [cut for cut in found if cut[node] == state]
            assert run.clocks(node)[state] == tuple(map(min, *having, having[0]))


@RUNS
@given(st.data())
def test_a_conjunction_is_possible_exactly_if_some_cut_has_it_and_the_smallest_is_found(data: st.DataObject) -> None:
    run = data.draw(computations())
    truth = data.draw(labels(run, st.booleans()))
    asked = {n: truth[n] for n in data.draw(st.sets(st.integers(0, len(run.nodes) - 1)))}
    holding = [cut for cut in all_cuts(run) if all(row[cut[n]] for n, row in asked.items())]
    found = possibly_all(run, asked)
    if not holding:
        assert found is None
    else:
        assert found == tuple(map(min, *holding, holding[0]))
        assert found in holding


@RUNS
@given(st.data())
def test_a_conjunction_is_definite_exactly_if_no_order_avoids_it(data: st.DataObject) -> None:
    run = data.draw(computations())
    truth = data.draw(labels(run, st.booleans()))
    asked = {n: truth[n] for n in data.draw(st.sets(st.integers(0, len(run.nodes) - 1), min_size=1))}
    expected = holds_definitely(run, lambda cut: all(row[cut[n]] for n, row in asked.items()))
    assert (definitely_all(run, asked) is not None) == expected


@RUNS
@given(st.data())
def test_the_smallest_sum_is_that_of_the_cheapest_cut(data: st.DataObject) -> None:
    run = data.draw(computations())
    values = data.draw(labels(run, st.integers(-9, 9)))
    asked = {n: values[n] for n in data.draw(st.sets(st.integers(0, len(run.nodes) - 1)))}
    found = smallest_sum(run, asked)
    assert run.is_consistent(found.cut)
    assert found.total == sum(row[found.cut[n]] for n, row in asked.items())
    assert found.total == min(sum(row[cut[n]] for n, row in asked.items()) for cut in all_cuts(run))


@RUNS
@given(st.data())
def test_walking_the_lattice_decides_any_predicate(data: st.DataObject) -> None:
    run = data.draw(computations())
    marked = set(data.draw(st.lists(st.sampled_from(all_cuts(run)), max_size=6)))
    maybe, surely = possibly(run, marked.__contains__), definitely(run, marked.__contains__)
    assert maybe.holds == bool(marked)
    assert maybe.witness is None or maybe.witness in marked
    assert surely.holds == holds_definitely(run, marked.__contains__)
    if surely.holds is False:
        assert surely.around[0] == run.first
        assert surely.around[-1] == run.last
        assert not marked & set(surely.around)
        for before, after in pairwise(surely.around):
            assert sum(after) == sum(before) + 1
            assert run.is_consistent(after)


def test_a_walk_beyond_its_bounds_decides_nothing() -> None:
    run = Computation.of({f"n{i}": 9 for i in range(6)}, {})

    def never(cut: Positions) -> bool:
        return False

    for bounds in (Bounds(cuts=1000, width=10**9), Bounds(cuts=10**9, width=1000)):
        assert possibly(run, never, bounds).holds is None
        assert definitely(run, never, bounds).holds is None

"""Where two runs part: the last cut that both have."""

from __future__ import annotations

import pytest

from strobe.model.errors import Misuse
from strobe.predicates.compare import compare
from tests.predicates.test_walk import simulated


def test_a_run_and_itself_do_not_part() -> None:
    one, again = simulated(seed=7), simulated(seed=7)
    found = compare(one, again)
    assert found.none
    assert found.at == one.computation.last
    assert found.first is None
    assert all(found.same_states)


@pytest.mark.parametrize("seed", [8, 9, 10])
def test_two_seeds_part_at_a_cut_of_both_after_which_no_step_is_shared(seed: int) -> None:
    one, other = simulated(seed=7), simulated(seed=seed)
    found = compare(one, other)
    assert not found.none
    assert one.computation.is_consistent(found.at)
    assert other.computation.is_consistent(found.at)
    assert one.cut(found.at) == other.cut(found.at), "up to there one cannot tell which of the two it is"
    assert found.first is not None
    node, number = found.first
    assert found.at[one.computation.nodes.index(node)] == number - 1


def test_another_protocol_with_the_same_seed_shares_a_beginning() -> None:
    one, other = simulated(seed=7), simulated(seed=7, delays="uniform:1:19")
    found = compare(one, other)
    assert 0 < sum(found.at) < one.computation.events


def test_runs_of_different_systems_are_refused() -> None:
    with pytest.raises(Misuse, match="n4 is only in one"):
        compare(simulated(seed=7), simulated(seed=7, nodes=3))

"""No row is lost, and none is there twice."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from strobe.verify.rows import Offender, no_duplicate, no_loss


def test_the_same_rows_in_any_order_pass_both() -> None:
    assert no_loss([1, 2, 3], [3, 1, 2]).ok
    assert no_duplicate([1, 2, 3], [3, 1, 2]).ok


def test_a_lost_row_is_named() -> None:
    check = no_loss([1, 2, 3], [1, 3])
    assert (check.ok, check.wrong, check.offenders) == (False, 1, (Offender(2, 1, 0),))
    assert check.sentence == (
        "3 rows in the sources, 2 rows in the sinks. 1 row is lost; the first: 2 (sent once, arrived never)."
    )


def test_a_lost_row_is_no_duplicate_and_a_duplicate_is_no_loss() -> None:
    assert no_duplicate([1, 2], [1]).ok
    assert no_loss([1], [1, 1]).ok


def test_a_row_that_arrived_twice_is_named() -> None:
    check = no_duplicate(["x", "y"], ["x", "y", "y"])
    assert check.offenders == (Offender("y", 1, 2),)
    assert check.sentence == (
        "2 rows in the sources, 3 rows in the sinks. 1 row is there too often; the first: 'y' (sent once, arrived "
        "twice)."
    )


def test_a_row_that_no_source_has_is_one_too_many() -> None:
    assert no_duplicate([1], [1, 99]).offenders == (Offender(99, 0, 1),)


def test_a_source_may_hold_a_row_twice_and_then_the_sink_must_too() -> None:
    assert no_duplicate([1, 1], [1, 1]).ok
    assert no_loss([1, 1], [1]).offenders == (Offender(1, 2, 1),)


def test_only_the_first_offenders_are_named_but_all_are_counted() -> None:
    check = no_loss(range(1000), (), name=3)
    assert (check.wrong, [o.id for o in check.offenders]) == (1000, [0, 1, 2])


@given(st.lists(st.integers(0, 5)), st.lists(st.integers(0, 5)))
def test_both_pass_exactly_when_the_rows_are_the_same(sources: list[int], sinks: list[int]) -> None:
    same = Counter(sources) == Counter(sinks)
    assert (no_loss(sources, sinks).ok and no_duplicate(sources, sinks).ok) == same

"""Conditions: what they may say, what they answer, and which special forms are seen in them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from strobe.model.errors import Misuse
from strobe.model.ids import NodeId
from strobe.predicates.condition import ANY, Unevaluable, read_condition

NODES = tuple(map(NodeId, ("a", "b", "branch-7")))
STATES = {
    NodeId("a"): {"balance": 5, "queue": [1, 2], "of": {"x": 1}, "name": "left"},
    NodeId("b"): {"balance": -3, "queue": [], "of": {"x": 2}, "name": "right"},
    NodeId("branch-7"): {"balance": 0.5, "queue": [7], "of": {"x": 3}, "name": "middle"},
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("a.balance + b.balance == 2", True),
        ("a.balance + b.balance < 2", False),
        ('node["branch-7"].balance < a.balance', True),
        ("a.balance > 4 and b.balance < 0", True),
        ("a.balance > 4 and not b.balance < 0", False),
        ("a.balance < 0 or len(b.queue) == 0", True),
        ("-3 <= b.balance < a.balance", True),
        ("a.of.x + b.of.x == 3 and 7 in node['branch-7'].queue", True),
        ('a.name in ["left", "right"] and abs(b.balance) == 3', True),
        ("a.queue[1] == b.of.x", True),
    ],
)
def test_a_condition_speaks_of_several_nodes(text: str, holds: bool) -> None:
    condition = read_condition(text, NODES)
    condition.check(STATES)
    assert condition.holds(STATES) is holds


def test_node_alone_is_any_node_and_fields_of_objects_count() -> None:
    @dataclass
    class Account:
        balance: int

    condition = read_condition("node.balance < 0", NODES)
    assert condition.nodes == {ANY}
    assert condition.holds({ANY: Account(-1)})
    assert not condition.holds({ANY: {"balance": 1}})
    with pytest.raises(Unevaluable, match="Account has no field 'size'; it has: balance"):
        read_condition("node.size > 1", NODES).check({ANY: Account(1)})


def test_a_conjunction_is_split_by_node() -> None:
    condition = read_condition("a.balance > 4 and b.balance < 0 and a.of.x == 1", NODES)
    assert condition.conjuncts is not None
    assert [part.node for part in condition.conjuncts] == ["a", "b"]
    assert [part.of(STATES[part.node]) for part in condition.conjuncts] == [True, True]
    for other in ("a.balance > 4 or b.balance < 0", "a.balance > b.balance", "node.balance > 1"):
        assert read_condition(other, NODES).conjuncts is None


def test_a_sum_over_nodes_is_brought_into_one_form() -> None:
    condition = read_condition("10 - a.balance >= b.balance + 2", NODES)  # that is a + b <= 8
    below = condition.sum_below
    assert below is not None
    assert [(factor, part.node) for factor, part in below.terms] == [(1, "a"), (1, "b")]
    assert (below.bound, below.strict) == (8, False)
    for other in ("a.balance == b.balance", "a.balance < 3", "a.balance * b.balance < 3"):
        assert read_condition(other, NODES).sum_below is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "invalid syntax"),
        ("a.balance <", "invalid syntax"),
        ("1 < 2", "names no field"),
        ("a", "stands alone"),
        ("c.balance < 1", "there is no node 'c'"),
        ('node["c"].balance < 1', "there is no node 'c'"),
        ("a.__class__ == 1", "not a field that can be seen"),
        ("a.balance.__class__ == 1", "not a field that can be seen"),
        ("open(a.name)", "not allowed"),
        ("a.name.upper() == 'X'", "not allowed"),
        ("(lambda: 1)() < a.balance", "not allowed"),
        ("[x for x in a.queue]", "not allowed"),
        ("node.balance < a.balance", "any node and of a certain one"),
        ("a.balance < " + "(" * 60 + "1" + ")" * 60 + " + 1" * 60, "nested too deeply"),
        ("a.balance < 1 or " * 80 + "a.balance < 1", "longer than"),
    ],
)
def test_anything_else_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(Misuse, match=why):
        read_condition(text, NODES)


def test_a_state_that_does_not_fit_is_named() -> None:
    with pytest.raises(Unevaluable, match="no 'size'"):
        read_condition("a.size < 3 and b.balance < 0", NODES).holds(STATES)
    with pytest.raises(Unevaluable, match="str is not a number"):
        read_condition("a.name + 1 > b.balance", NODES).holds(STATES)

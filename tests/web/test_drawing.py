"""The layout of graphs: left to right, loops as loops, nothing on top of anything."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from strobe.web.drawing import Link, draw
from strobe.web.views import Drawing
from tests.web.homes import LEDGER, Reads, wide


def drawn(reads: Reads, feedback: tuple[tuple[str, str], ...] = ()) -> Drawing:
    return draw(list(reads), [Link(p, c, (p, c) in feedback) for c, of in reads.items() for p in of])


def overlaps(drawing: Drawing) -> list[tuple[str, str]]:
    w, h = drawing.box_width, drawing.box_height
    return [
        (a.node, b.node)
        for a, b in itertools.combinations(drawing.boxes, 2)
        if abs(a.x - b.x) < w and abs(a.y - b.y) < h
    ]


def test_a_stage_stands_right_of_all_that_it_reads() -> None:
    x = {box.node: box.x for box in drawn(LEDGER).boxes}
    assert all(x[p] < x[c] for c, of in LEDGER.items() for p in of)
    assert x["transfers"] < x["suspects"] < x["flagged"]


def test_a_loop_is_drawn_below_everything_and_the_rest_as_without_it() -> None:
    drawing = drawn({**LEDGER, "postings": ["transfers", "flagged"]}, (("flagged", "postings"),))
    loops = [wire for wire in drawing.wires if wire.feedback]
    assert [(w.source, w.target) for w in loops] == [("flagged", "postings")]
    floor = max(box.y for box in drawing.boxes) + drawing.box_height
    assert loops[0].label_y > floor
    assert {b.node: b.x for b in drawing.boxes if b.node != "postings"}.keys() == LEDGER.keys() - {"postings"}


def test_a_loop_that_nobody_marked_is_found() -> None:
    drawing = drawn({"a": ["c"], "b": ["a"], "c": ["b"], "d": ["d"]})
    assert {(w.source, w.target) for w in drawing.wires if w.feedback} == {("c", "a"), ("d", "d")}


def test_sixty_stages_stand_apart() -> None:
    drawing = drawn(wide(60))
    assert len(drawing.boxes) == 60
    assert overlaps(drawing) == []
    assert all(b.x >= 0 and b.x + drawing.box_width <= drawing.width for b in drawing.boxes)
    assert all(b.y >= 0 and b.y + drawing.box_height <= drawing.height for b in drawing.boxes)


def test_a_long_chain_needs_no_stack() -> None:
    drawing = drawn({f"s{i}": [f"s{i - 1}"] if i else [] for i in range(3000)})
    assert len({box.y for box in drawing.boxes}) == 1


def test_no_stage_no_drawing() -> None:
    assert draw([], []).boxes == []


NODES = [f"n{i}" for i in range(9)]


@given(st.sets(st.tuples(st.sampled_from(NODES), st.sampled_from(NODES)), max_size=30))
def test_any_graph_is_drawn_with_each_channel_once_and_the_same_way_each_time(pairs: set[tuple[str, str]]) -> None:
    links = [Link(*pair) for pair in sorted(pairs)]
    drawing = draw(NODES, links)
    assert {(w.source, w.target) for w in drawing.wires} == pairs
    assert len(drawing.wires) == len(pairs)
    assert overlaps(drawing) == []
    assert draw(NODES, links) == drawing

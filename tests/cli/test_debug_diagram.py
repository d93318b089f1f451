"""The diagram as text: every step, every message, and where the cut goes."""

from __future__ import annotations

import pytest

from strobe.cli.debug_diagram import Diagram, Role, step_words
from strobe.hosts.sim.faults import Faults
from strobe.hosts.sim.runner import SimConfig, run, workload_of
from strobe.model.events import Internal
from strobe.predicates.replay import Run, run_of
from strobe.predicates.walk import Walk, walk_through

SMALL = """\
     n1    n2    n3
  1  ●─┐   ┃     ┃     n1 sends 10 to n3
  2  ┃ │   ●─┐   ┃     n2 sends 6 to n1
  3  ┃ └───╂─┼──▶●     n3 receives 10 from n1
  4  ┃     ┃ │   ◆─┐   n3 sends 42 to n1
  5  ●◀────╂─┘   ┃ │   n1 receives 6 from n2
  6  ●─┐   ┃     ┃ │   n1 sends 10 to n3
  7  ●◀┼───╂─────╂─┘   n1 receives 42 from n3
  8  ┃ │   ●─┐   ┃     n2 sends 6 to n3
  9  ┊ │   ┊ │   ○─┐   n3 sends 13 to n1
 10  ┊ └───┼─┼──▶○ │   n3 receives 10 from n1
 11  ┊     ┊ └──▶○ │   n3 receives 6 from n2
 12  ○◀────┼─────┼─┘   n1 receives 13 from n3
"""


def simulated(workload: str = "bank", *, epoch: int | None = None, **options: object) -> tuple[Run, Walk]:
    journal = run(SimConfig(workload, **options)).journal  # type: ignore[arg-type]
    assert journal is not None
    made = run_of(journal, workload_of(journal.header), epoch)
    return made, walk_through(made)


SYSTEMS = [
    pytest.param({"seed": 7}, id="bank"),
    pytest.param({"seed": 1, "nodes": 9}, id="many messages in flight"),
    pytest.param({"seed": 3, "faults": Faults(lose=200)}, id="messages are lost"),
    pytest.param({"seed": 3, "faults": Faults(duplicate=200)}, id="messages come twice"),
    pytest.param({"seed": 3, "faults": Faults(crashes=1), "epoch": 2}, id="after a restart"),
    pytest.param({"workload": "philosophers", "seed": 2}, id="philosophers"),
]


@pytest.mark.parametrize("options", SYSTEMS)
def test_every_line_has_its_step_and_an_arrow_for_what_it_received(options: dict[str, object]) -> None:
    made, walk = simulated(**options)  # type: ignore[arg-type]
    diagram = Diagram(made, walk)
    for line, (node, number) in enumerate(walk.order):
        pieces = diagram.line(line, made.computation.last, 0)
        drawn = "".join(text for text, _ in pieces[:-1])
        assert len(drawn) == diagram.words_at
        assert drawn.count("●") + drawn.count("◆") == 1
        received = not isinstance(made.event(made.computation.nodes[node], number), Internal)
        assert drawn.count("▶") + drawn.count("◀") == received
        assert pieces[-1][0] == step_words(made, made.computation.nodes[node], number)[:60]


@pytest.mark.parametrize("options", SYSTEMS)
def test_what_is_in_flight_at_the_cut_is_what_is_drawn_so(options: dict[str, object]) -> None:
    made, walk = simulated(**options)  # type: ignore[arg-type]
    diagram = Diagram(made, walk)
    last = made.cut(made.computation.last)
    never = {(channel, m.seq) for channel, messages in last.channels.items() for m in messages}
    for length in range(0, len(walk.order) + 1, 29):
        cut = walk.prefix(length)
        flying = {(channel, m.seq) for channel, messages in made.cut(cut).channels.items() for m in messages}
        arrows = set()
        for line, (node, number) in enumerate(walk.order):
            for text, role in diagram.line(line, cut, 0):
                event = made.event(made.computation.nodes[node], number)
                if role is Role.FLYING and ("▶" in text or "◀" in text) and not isinstance(event, Internal):
                    arrows.add((event.channel, event.seq))
        assert arrows == flying - never


def test_lanes_are_solid_inside_the_cut_and_dotted_beyond() -> None:
    made, walk = simulated(seed=7)
    diagram = Diagram(made, walk)
    along = walk.prefix(12)
    lines = list(diagram.text(0, 30, along, 0))[1:]
    assert all("┊" not in line and "○" not in line for line in lines[:12])
    assert all("┃" not in line and "●" not in line for line in lines[12:])
    staircase = walk.without_step(walk.prefix(12), 0, 2)
    mixed = list(diagram.text(0, 12, staircase, 0))[1:]
    assert any("┊" in line and "┃" in line for line in mixed)


def test_a_small_run_as_it_looks() -> None:
    made, walk = simulated(seed=7, nodes=3, params={"transfers": 2})
    lines = list(Diagram(made, walk).text(0, 20, walk.prefix(8), 2))
    assert "\n".join(lines) == SMALL.rstrip("\n")


def test_a_click_finds_the_nearest_lane_and_how_far_it_has_come() -> None:
    made, walk = simulated(seed=7)
    diagram = Diagram(made, walk)
    header = "".join(text for text, _ in diagram.header(0))
    for index, node in enumerate(made.computation.nodes):
        assert diagram.node_at(header.index(node)) == index
        assert diagram.node_at(header.index(node) + 2) == index
        assert diagram.position_at(index, 40) == walk.prefix(41)[index]
    assert diagram.node_at(10_000) == len(made.computation.nodes) - 1

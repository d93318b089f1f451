"""The space–time diagram, read back from its SVG: what is drawn, where, and in which colour.

Every sign carries a tooltip, so a test finds an arrow by what it means ("a→b, message 1: 5") and then looks at how it
is painted.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strobe.hosts.sim.faults import Faults
from strobe.hosts.sim.runner import SimConfig
from strobe.hosts.sim.runner import run as run_simulation
from strobe.model.cut import Cut, Message
from strobe.model.events import (
    Completed,
    Crashed,
    Duplicated,
    Event,
    Internal,
    Lost,
    MarkerReceived,
    MarkerSent,
    Received,
    Recorded,
    Restarted,
    Sent,
)
from strobe.model.graph import Channel, Graph
from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId
from strobe.verify.consistency import Rule, check_journal
from strobe.verify.diagram import render
from strobe.verify.diagram.layout import lay_out
from strobe.verify.diagram.spacetime import Role, space_time
from strobe.verify.diagram.svg import Box, text_width
from strobe.verify.diagram.theme import WARNING, colour
from strobe.verify.journal import Header, Journal

SVG = "{http://www.w3.org/2000/svg}"
ONE = SnapshotId(1)
TWO = SnapshotId(2)


# ── small journals by hand ──────────────────────────────────────────────────────────────────────────────────────────


class Run:
    """Writes a journal: steps and sequence numbers are counted here, channels are named after their ends."""

    def __init__(self, *nodes: str, channels: Sequence[tuple[str, str]] = ()) -> None:
        pairs = channels or [(a, b) for a in nodes for b in nodes if a != b]
        self.graph = Graph(
            tuple(map(NodeId, nodes)),
            tuple(Channel(ChannelId(f"{a}-{b}"), NodeId(a), NodeId(b)) for a, b in pairs),
        )
        self.events: list[Event] = []
        self.steps = dict.fromkeys(self.graph.nodes, 0)
        self.seqs = {c.id: 0 for c in self.graph.channels}

    def send(self, source: str, target: str, payload: object = 5) -> int:
        node, channel = NodeId(source), ChannelId(f"{source}-{target}")
        self.think(source)
        self.seqs[channel] += 1
        self.events.append(Sent(node, self.steps[node], channel, self.seqs[channel], payload))
        return self.seqs[channel]

    def think(self, name: str) -> None:
        self.steps[NodeId(name)] += 1
        self.events.append(Internal(NodeId(name), self.steps[NodeId(name)], None))

    def receive(self, source: str, target: str, seq: int = 1) -> None:
        node = NodeId(target)
        self.steps[node] += 1
        self.events.append(Received(node, self.steps[node], ChannelId(f"{source}-{target}"), seq))

    def record(self, *names: str, snapshot: SnapshotId = ONE) -> None:
        self.events += (Recorded(NodeId(n), self.steps[NodeId(n)], snapshot) for n in names)

    def marker(self, source: str, target: str, snapshot: SnapshotId = ONE, *, records: bool = False) -> None:
        channel = ChannelId(f"{source}-{target}")
        a, b = NodeId(source), NodeId(target)
        self.events.append(MarkerSent(a, self.steps[a], channel, snapshot))
        self.events.append(MarkerReceived(b, self.steps[b], channel, snapshot))
        if records:
            self.record(target, snapshot=snapshot)

    def cut(self, held: Iterable[tuple[str, int, object]] = (), snapshot: SnapshotId = ONE, state: object = 7) -> Cut:
        contents: dict[ChannelId, tuple[Message, ...]] = {c.id: () for c in self.graph.channels}
        for name, seq, payload in held:
            contents[ChannelId(name)] += (Message(seq, payload),)
        return Cut(snapshot, dict.fromkeys(self.graph.nodes, state), contents)

    def complete(self, *held: tuple[str, int, object], snapshot: SnapshotId = ONE, state: object = 7) -> None:
        self.events.append(Completed(self.cut(held, snapshot, state)))

    @property
    def journal(self) -> Journal:
        initial = dict.fromkeys(self.graph.nodes, 0)
        return Journal(Header("sim", "bank", {}, "chandy-lamport", "fifo", 7, self.graph, initial), self.events)

    @property
    def picture(self) -> Picture:
        return Picture(render(self.journal))


class Picture:
    def __init__(self, svg: str) -> None:
        self.svg = svg
        self.root = ET.fromstring(svg)
        self.texts = [element.text or "" for element in self.root.iter(f"{SVG}text")]

    def signs(self, title: str) -> list[ET.Element]:
        """The elements whose tooltip begins with `title`, in the order in which they are painted."""
        return [e for e in self.root.iter() if (e.findtext(f"{SVG}title") or "").startswith(title) and e != self.root]

    def sign(self, title: str) -> ET.Element:
        (element,) = self.signs(title)
        return element

    def arrow(self, title: str) -> tuple[tuple[float, float], tuple[float, float]]:
        """Where an arrow begins and ends."""
        numbers = [float(n) for n in re.findall(r"-?[\d.]+", self.signs(title)[0].attrib["d"])]
        return (numbers[0], numbers[1]), (numbers[-2], numbers[-1])

    def line_of(self, node: str) -> float:
        """The height of a node's line, from its name."""
        (name,) = (e for e in self.root.iter(f"{SVG}text") if e.text == node)
        return float(name.attrib["y"]) - 4.5


def in_flight() -> Run:
    """a sends 35 and records; b receives it after recording: in flight, and recorded."""
    run = Run("a", "b")
    run.send("a", "b", 35)
    run.record("a", "b")
    run.receive("a", "b")
    run.complete(("a-b", 1, 35))
    return run


def backward() -> Run:
    """a records, then sends; b receives, then records."""
    run = Run("a", "b")
    run.record("a")
    run.send("a", "b", 20)
    run.receive("a", "b")
    run.record("b")
    run.complete()
    return run


def missed() -> Run:
    run = in_flight()
    run.events.pop()
    run.complete()
    return run


# ── lines and arrows ────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_node_has_a_named_line_in_the_order_of_the_graph() -> None:
    picture = Run("x", "a", "m").picture
    assert picture.line_of("x") < picture.line_of("a") < picture.line_of("m")


def test_a_message_is_an_arrow_from_its_senders_line_to_its_receivers_that_points_right() -> None:
    run = Run("a", "b")
    run.send("a", "b", 35)
    run.receive("a", "b")
    picture = run.picture
    (x1, y1), (x2, y2) = picture.arrow("a→b, message 1: 35")
    assert x1 < x2
    assert y1 == pytest.approx(picture.line_of("a"), abs=6)
    assert y2 == pytest.approx(picture.line_of("b"), abs=6)


def test_a_message_to_oneself_is_an_arc_above_the_line() -> None:
    run = Run("a", channels=[("a", "a")])
    run.send("a", "a", 3)
    run.receive("a", "a")
    path = run.picture.sign("a→a, message 1").attrib["d"]
    middle = [float(n) for n in re.findall(r"-?[\d.]+", path.split("Q")[1])]
    assert middle[1] < run.picture.line_of("a") - 10


def test_a_marker_is_dashed_in_its_snapshots_colour() -> None:
    run = Run("a", "b")
    run.record("a")
    run.marker("a", "b", records=True)
    marker = run.picture.sign("marker of snapshot 1, a→b")
    assert marker.attrib["stroke"] == colour(0)
    assert "stroke-dasharray" in marker.attrib


def test_a_lost_message_ends_in_a_cross_and_an_unreceived_one_in_a_ring() -> None:
    run = Run("a", "b")
    run.send("a", "b")
    run.events.append(Lost(ChannelId("a-b"), 1))
    run.send("a", "b")
    picture = run.picture
    assert "lost by the channel" in picture.texts
    assert "not received" in picture.texts
    assert len(picture.signs("a→b, message 1: 5, lost")) == 2, "the stub and its cross"
    assert len(picture.signs("a→b, message 2: 5, never received")) == 1


def test_a_duplicated_message_has_a_second_dotted_arrow() -> None:
    run = Run("a", "b")
    run.send("a", "b")
    run.events.append(Duplicated(ChannelId("a-b"), 1))
    run.receive("a", "b")
    run.receive("a", "b")
    first, second = run.picture.signs("a→b, message 1: 5")
    assert "stroke-dasharray" not in first.attrib
    assert "stroke-dasharray" in second.attrib


def test_a_crash_is_a_cross_and_the_line_is_dotted_until_the_restart() -> None:
    run = in_flight()
    run.events.append(Crashed(NodeId("b")))
    run.events.append(Restarted(Incarnation(2), run.cut([("a-b", 1, 35)])))
    run.receive("a", "b")
    picture = run.picture
    crash, restart = picture.sign("b crashes"), picture.sign("everything starts again from snapshot 1")
    dotted = [e for e in picture.root.iter(f"{SVG}line") if e.get("stroke-dasharray") == "1 5"]
    assert [e.attrib["y1"] for e in dotted] == [f"{picture.line_of('b'):g}"]
    assert dotted[0].attrib["x2"] == restart.attrib["x1"]
    assert crash.attrib["stroke"] == WARNING


def test_what_a_restart_puts_in_flight_again_starts_at_the_restart() -> None:
    run = in_flight()
    run.events.append(Restarted(Incarnation(2), run.cut([("a-b", 1, 35)])))
    run.receive("a", "b")
    again = [a for a in space_time(run.journal).arrows if a.channel.id == "a-b"]
    points = space_time(run.journal).points
    assert len(again) == 2
    assert again[1].start is not None
    assert points[again[1].start].node is None


def test_a_journal_merged_from_one_file_per_node_is_drawn_in_causal_order() -> None:
    run = Run("a", "b")
    run.send("b", "a")
    run.receive("b", "a")
    run.send("a", "b")
    run.receive("a", "b")
    merged = sorted(run.events, key=lambda e: getattr(e, "node", ""))
    assert merged != run.events
    picture = Picture(render(replace(run.journal, events=merged)))
    assert picture.svg == run.picture.svg


# ── cuts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_cut_runs_through_the_recording_of_each_node() -> None:
    picture = in_flight().picture
    cut = picture.sign("the cut of snapshot 1")
    numbers = [float(n) for n in re.findall(r"-?[\d.]+", cut.attrib["d"])]
    corners = list(zip(numbers[::2], numbers[1::2], strict=True))
    for node in ("a", "b"):
        diamond = picture.sign(f"{node} records for snapshot 1")
        top = diamond.attrib["points"].split()[0].split(",")
        assert (float(top[0]), float(top[1]) + 7) in corners


def test_a_message_in_flight_is_thick_in_the_snapshots_colour() -> None:
    picture = in_flight().picture
    arrow = picture.sign("a→b, message 1: 35")
    assert (arrow.attrib["stroke"], float(arrow.attrib["stroke-width"])) == (colour(0), 2.8)
    assert "Snapshot 1 is a consistent cut, with a→b 35 in flight." in picture.texts


def test_a_message_in_flight_at_two_cuts_is_striped_in_both_colours() -> None:
    run = Run("a", "b")
    run.send("a", "b", 35)
    run.record("a", "b")
    run.record("a", "b", snapshot=TWO)
    run.receive("a", "b")
    run.complete(("a-b", 1, 35))
    run.complete(("a-b", 1, 35), snapshot=TWO)
    assert [e.attrib["stroke"] for e in run.picture.signs("a→b, message 1: 35")] == [colour(0), colour(1)]


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        (backward(), "a→b 20: received before the cut, but sent after it."),
        (missed(), "a→b 35: in flight across the cut, but not recorded."),
    ],
)
def test_what_breaks_the_law_is_in_the_warning_colour_marked_and_named(run: Run, sentence: str) -> None:
    picture = run.picture
    (arrow,) = picture.signs("a→b, message 1")
    assert (arrow.attrib["stroke"], float(arrow.attrib["stroke-width"])) == (WARNING, 2.8)
    assert "Snapshot 1 is wrong." in picture.texts
    assert sentence in picture.texts
    assert any(text.startswith("! ") for text in picture.texts)


def _roles(run: Run) -> list[Role]:
    return [c.role for a in space_time(run.journal).arrows for c in a.crossings]


def test_a_message_recorded_though_its_receivers_state_contains_it_is_extra() -> None:
    run = Run("a", "b")
    run.send("a", "b")
    run.receive("a", "b")
    run.record("a", "b")
    run.complete(("a-b", 1, 5))
    assert _roles(run) == [Role.EXTRA]


def test_a_message_recorded_before_it_was_sent_is_extra() -> None:
    run = Run("a", "b")
    run.record("a", "b")
    run.send("a", "b")
    run.receive("a", "b")
    run.complete(("a-b", 1, 5))
    assert _roles(run) == [Role.EXTRA]


def test_a_message_received_twice_before_the_cut_is_wrong_the_second_time() -> None:
    run = Run("a", "b")
    run.send("a", "b")
    run.receive("a", "b")
    run.receive("a", "b")
    run.record("a", "b")
    run.complete()
    first, second = space_time(run.journal).arrows
    assert not first.crossings
    assert [c.role for c in second.crossings] == [Role.TWICE]


def test_a_message_lost_before_the_cut_is_wrong_and_one_lost_after_it_is_not() -> None:
    run = Run("a", "b")
    run.send("a", "b")
    run.events.append(Lost(ChannelId("a-b"), 1))
    run.record("a", "b")
    run.send("a", "b")
    run.events.append(Lost(ChannelId("a-b"), 2))
    run.complete()
    assert _roles(run) == [Role.LOST]


def test_a_snapshot_that_never_became_complete_is_dotted_and_says_so() -> None:
    run = in_flight()
    run.events.pop()
    picture = run.picture
    assert "stroke-dasharray" in picture.sign("the cut of snapshot 1").attrib
    assert "snapshot 1, not complete" in picture.texts
    assert "Snapshot 1 was never complete, with a→b 35 in flight." in picture.texts


def test_an_id_that_was_used_again_after_a_restart_is_two_snapshots() -> None:
    run = in_flight()
    run.events.append(Restarted(Incarnation(2), run.cut([("a-b", 1, 35)])))
    run.receive("a", "b")
    run.record("a", "b")
    run.complete()
    picture = run.picture
    assert {"snapshot 1 of incarnation 1", "snapshot 1 of incarnation 2"} <= set(picture.texts)
    assert "Snapshot 1 of incarnation 1 is a consistent cut, with a→b 35 in flight." in picture.texts
    assert "Snapshot 1 of incarnation 2 is a consistent cut, with nothing in flight." in picture.texts


def test_recorded_states_stand_beside_the_recordings() -> None:
    run = in_flight()
    run.events.pop()
    run.complete(("a-b", 1, 35), state={"balance": 965, "left": [1, 2, 3]})
    assert run.picture.texts.count("965") == 2


LAW = {
    Rule.EFFECT_WITHOUT_CAUSE, Rule.MISSING_MESSAGE, Rule.EXTRA_MESSAGE, Rule.LATE_MESSAGE, Rule.LOST_MESSAGE,
    Rule.DUPLICATE_MESSAGE,
}  # fmt: skip


@given(
    seed=st.integers(0, 10_000),
    protocol=st.sampled_from(["chandy-lamport", "agreed-clock", "freeze-in-turn", "lai-yang"]),
    nodes=st.integers(2, 6),
    reorder=st.booleans(),
    faults=st.builds(Faults, lose=st.sampled_from([0, 100]), duplicate=st.sampled_from([0, 100])),
)
@settings(max_examples=60)
def test_the_diagram_calls_wrong_exactly_what_the_verifier_does(
    seed: int, protocol: str, nodes: int, reorder: bool, faults: Faults
) -> None:
    config = SimConfig(
        nodes=nodes, protocol=protocol, seed=seed, order="reorder" if reorder else "fifo", force=True, snapshots=2,
        params={"transfers": 8}, faults=faults,
    )  # fmt: skip
    journal = run_simulation(config).journal
    assert journal is not None
    picture = space_time(journal)
    complete = {cut.snapshot for cut in picture.cuts if cut.cut is not None}
    drawn = {
        (crossing.snapshot.id, arrow.channel.id, arrow.seq)
        for arrow in picture.arrows
        for crossing in arrow.crossings
        if crossing.role.wrong and crossing.snapshot in complete
    }
    found = {
        (v.snapshot, v.channel, v.message.seq)
        for v in check_journal(journal).violations
        if v.rule in LAW and v.message is not None
    }
    assert drawn == found


# ── legend, title, labels ───────────────────────────────────────────────────────────────────────────────────────────

SIGNS = {
    "message", "marker", "recording and cut", "recorded state", "in flight at the cut, and recorded",
    "received before the cut, sent after it", "in flight, but not recorded", "lost before the cut",
    "received again before the cut", "recorded, but not in flight", "step without a message", "other end left out",
    "not received", "lost by the channel", "received once more", "crash", "restart from a snapshot",
}  # fmt: skip


def test_the_legend_explains_only_what_occurs() -> None:
    assert SIGNS.intersection(in_flight().picture.texts) == {
        "recording and cut", "recorded state", "in flight at the cut, and recorded",
    }  # fmt: skip
    run = Run("a", "b")
    run.send("a", "b")
    run.receive("a", "b")
    run.think("a")
    assert SIGNS.intersection(run.picture.texts) == {"message", "step without a message"}


def test_names_and_payloads_cannot_break_the_markup() -> None:
    run = Run("a", "b")
    run.send("a", "b", '<&">')
    run.receive("a", "b")
    picture = Picture(render(run.journal, title='<b>"&'))
    assert '<b>"&' in picture.texts
    assert "<&>" in picture.texts


def test_the_title_is_the_run_unless_given() -> None:
    assert "bank: 2 nodes, chandy-lamport, fifo channels, seed 7" in in_flight().picture.texts
    assert "mine" in Picture(render(in_flight().journal, title="mine")).texts


def crowd(nodes: int, messages: int) -> Run:
    """Everybody sends to everybody; a snapshot in the middle."""
    run = Run(*(f"n{i}" for i in range(nodes)))
    names = run.graph.nodes
    waiting: list[tuple[str, str, int]] = []
    for i in range(messages):
        source, target = names[i * 7 % nodes], names[(i * 7 + 1 + i * i % (nodes - 1)) % nodes]
        waiting.append((source, target, run.send(source, target, i % 90)))
        if len(waiting) > nodes:
            run.receive(*waiting.pop(i % 3))
        if i == messages // 2:
            run.record(*names)
            run.complete(*((f"{a}-{b}", seq, 0) for a, b, seq in waiting))
    return run


@pytest.mark.parametrize("nodes", [2, 4, 8, 12])
def test_no_label_covers_another(nodes: int) -> None:
    picture = Picture(render(crowd(nodes, 60).journal))
    boxes = []
    for text in picture.root.iter(f"{SVG}text"):
        if text.get("paint-order") and "transform" not in text.attrib:
            size, x, y = (float(text.attrib[name]) for name in ("font-size", "x", "y"))
            half = text_width(text.text or "", size) / 2
            boxes.append(Box(x - half, y - size * 0.8, x + half, y + size * 0.1))
    assert len(boxes) > 10
    assert not [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.hits(b)]


@pytest.mark.parametrize("nodes", [2, 4, 8, 12])
def test_every_message_points_right(nodes: int) -> None:
    run = space_time(crowd(nodes, 40).journal)
    columns = lay_out(run, 500).column
    ends = [(columns[a.start], columns[a.end]) for a in run.arrows if a.start is not None and a.end is not None]
    assert ends
    assert all(start < end for start, end in ends)


def test_an_arrow_bends_around_the_point_of_a_node_that_it_does_not_concern() -> None:
    run = Run("a", "b", "c")
    run.send("a", "c")
    straight = run.journal
    for _ in range(3):
        run.think("b")
    run.think("c")
    run.receive("a", "c")
    (arrow,) = run.picture.signs("a→c, message 1")
    assert "Q" in arrow.attrib["d"]
    run.events = [e for e in straight.events if getattr(e, "node", "") != "b"]
    (arrow,) = run.picture.signs("a→c, message 1")
    assert "Q" not in arrow.attrib["d"]


# ── long and large runs ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_long_run_is_windowed_around_its_snapshot_and_says_what_is_left_out() -> None:
    journal = crowd(4, 800).journal
    picture = Picture(render(journal, max_events=60))
    points = len(picture.signs("n")) - len([e for e in picture.root.iter() if "→" in (e.findtext(f"{SVG}title") or "")])
    assert 55 <= points <= 75
    (note,) = (text for text in picture.texts if text.startswith("Shown: "))
    assert note.endswith("steps, around snapshot 1.")
    assert len([text for text in picture.texts if re.fullmatch(r"\d+ left out", text)]) == 2
    assert all(picture.signs(f"n{i} records for snapshot 1") for i in range(4))


def test_a_short_run_is_drawn_whole_without_a_note() -> None:
    texts = in_flight().picture.texts
    assert not [text for text in texts if text.startswith(("Shown", "Left out"))]


def test_a_message_with_an_end_outside_the_window_is_a_stub() -> None:
    assert "other end left out" in Picture(render(crowd(4, 800).journal, max_events=60)).texts


def test_of_too_many_snapshots_the_wrong_ones_are_shown_and_the_others_named() -> None:
    run = Run("a", "b")
    for number in range(1, 21):
        snapshot = SnapshotId(number)
        run.record("a", snapshot=snapshot)
        seq = run.send("a", "b") if number == 15 else 0
        if seq:
            run.receive("a", "b", seq)
        run.record("b", snapshot=snapshot)
        run.complete(snapshot=snapshot)
        for _ in range(10):
            run.think("a")
    picture = Picture(render(run.journal, max_events=20))
    assert picture.signs("the cut of snapshot 15")
    assert "Snapshot 15 is wrong." in picture.texts
    (note,) = (text for text in picture.texts if text.startswith("Left out: snapshots"))
    assert "15" not in re.findall(r"\d+", note)


def test_many_markers_that_only_close_channels_are_counted_instead_of_drawn() -> None:
    run = Run(*(f"n{i}" for i in range(8)))
    first, *others = run.graph.nodes
    run.record(first)
    for node in others:
        run.marker(first, node, records=True)
    for source in others:
        for target in run.graph.nodes:
            if source != target:
                run.marker(source, target)
    run.complete()
    picture = run.picture
    assert len(picture.signs("marker of snapshot 1")) == 7
    assert "Left out: 49 markers that only closed a channel." in picture.texts


def test_of_very_many_nodes_those_with_wrong_messages_are_shown() -> None:
    """Rather than the many others that have messages in flight."""
    names = [f"n{i}" for i in range(60)]
    quiet = [(f"n{i}", f"n{i + 1}") for i in range(0, 48, 2)]
    run = Run(*names, channels=[*quiet, ("n50", "n55")])
    for source, target in quiet:
        run.send(source, target)
    run.record(*names[:55])
    run.send("n50", "n55")
    run.receive("n50", "n55")
    run.record(*names[55:])
    run.complete(*((f"{source}-{target}", 1, 5) for source, target in quiet))
    picture = run.picture
    assert {"n50", "n55"} <= set(picture.texts)
    assert "Left out: 36 of 60 nodes with their messages." in picture.texts


def test_the_sentence_of_a_snapshot_counts_what_nodes_that_are_left_out_hold_too() -> None:
    names = [f"n{i}" for i in range(60)]
    run = Run(*names, channels=[*((f"n{i}", f"n{i + 1}") for i in range(59))])
    for i in range(59):
        run.send(f"n{i}", f"n{i + 1}")
    run.record(*names)
    run.complete(*((f"n{i}-n{i + 1}", 1, 5) for i in range(59)))
    assert "Snapshot 1 is a consistent cut, with 59 messages in flight." in run.picture.texts


def test_a_journal_without_events_is_a_picture_of_idle_lines() -> None:
    picture = Run("a", "b").picture
    assert picture.line_of("a") < picture.line_of("b")


def test_the_same_journal_gives_the_same_bytes_whatever_the_hash_seed() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import hashlib, test_diagram as t; from strobe.verify.diagram "
        "import render; print(hashlib.sha256(render(t.crowd(6, 300).journal).encode()).hexdigest())"
    )
    expected = hashlib.sha256(render(crowd(6, 300).journal).encode()).hexdigest()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", script, os.path.dirname(__file__)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == expected

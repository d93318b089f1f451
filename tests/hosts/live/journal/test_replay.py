"""Journals of live runs are replayed through the user's own handlers: states at any cut, and the proof."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path

import pytest

from strobe.hosts.live.api.attach import Service
from strobe.hosts.live.api.codec import encode_message, item_to_json, message_from_json
from strobe.hosts.live.api.process import Process
from strobe.hosts.live.api.topology import NodeSpec, Topology, complete, joined
from strobe.hosts.live.journal.merge import Merging, merge
from strobe.hosts.live.journal.parts import COORDINATOR, PartWriter
from strobe.hosts.live.journal.replaying import ReplayedProcesses
from strobe.model.errors import Misuse
from strobe.model.events import Completed, Internal, Received, Sent
from strobe.model.ids import ChannelId, Incarnation, NodeId
from strobe.predicates.faithful import NotDeterministic
from strobe.predicates.replay import Run, run_of
from strobe.verify.history import History
from strobe.verify.journal import Journal
from strobe.verify.reachability import prove
from tests.support.live.apps import Account
from tests.support.live.commandline import EXAMPLES, Terminal
from tests.support.live.replayed import Gambler, Odd, Parcel, Patient, Secretive
from tests.support.live.systems import bank, run, system


def recorded(tmp_path: Path, topology: Topology, *, snapshots: int = 2, kill: bool = False) -> Journal:
    """A run of real processes, of so many snapshots; with `kill`, one of them dies and all go back."""
    where: list[Path] = []

    async def work() -> None:
        async with system(topology, tmp_path, journal=True) as live:
            for _ in range(snapshots):
                await asyncio.sleep(0.05)
                await live.snapshot()
            if kill:
                before = live.incarnation
                live.kill(topology.graph.nodes[0])
                await live.incarnation_after(before)
                await asyncio.sleep(0.05)
                await live.snapshot()
            assert live.journal is not None
            where.append(live.journal)

    run(work)
    return merge(where[0], topology.graph, topology.name, topology.protocol)


def test_every_snapshot_of_a_live_run_is_proved_reachable(tmp_path: Path) -> None:
    topology = bank("abc")
    journal = recorded(tmp_path, topology, kill=True)
    history, app = History(journal), ReplayedProcesses(topology)
    cuts = [event.cut for event in journal.events if isinstance(event, Completed)]
    assert len(history.epochs) == 2
    assert len(cuts) == 3
    for cut in cuts:
        proof = prove(history, cut, app, cut_short=True)
        assert proof.holds, proof.sentence


@pytest.mark.parametrize("kind", [Odd, Patient])
def test_states_are_worked_out_at_every_recorded_cut(tmp_path: Path, kind: type[Process]) -> None:
    nodes = tuple(NodeSpec(NodeId(name), kind) for name in "ab")
    topology = Topology("odd", nodes, complete("ab"))
    journal = recorded(tmp_path, topology, kill=True)
    history, app = History(journal), ReplayedProcesses(topology)
    for epoch in history.epochs:
        replayed = run_of(history, app, epoch.number, compared=True)
        cuts = {event.cut.snapshot: event.cut for event in journal.events if isinstance(event, Completed)}
        assert replayed.snapshots
        for snapshot, positions in replayed.snapshots.items():
            at = replayed.cut(positions)
            assert at.states == cuts[snapshot].states
            assert at.channels == cuts[snapshot].channels


@pytest.mark.parametrize(
    ("kind", "named", "shown"),
    [
        (Gambler, "Gambler.on_timer('tick') is not deterministic", "replayed it sends"),
        (Secretive, "Secretive.on_message is not deterministic", "recorded"),
    ],
)
def test_a_handler_that_is_not_deterministic_is_named(
    tmp_path: Path, kind: type[Process], named: str, shown: str
) -> None:
    nodes = tuple(NodeSpec(NodeId(name), kind) for name in "ab")
    topology = Topology("dice", nodes, complete("ab"))
    journal = recorded(tmp_path, topology)
    replayed = run_of(journal, ReplayedProcesses(topology), compared=True)
    with pytest.raises(NotDeterministic) as caught:
        [replayed.states(node) for node in topology.graph.nodes]
    assert named in caught.value.what
    assert shown in caught.value.what


def test_an_attached_service_cannot_be_replayed_and_says_so() -> None:
    topology = Topology("chat", (NodeSpec(NodeId("a"), Service), NodeSpec(NodeId("b"), Account)), joined(("a", "b")))
    with pytest.raises(Misuse, match="attached service"):
        ReplayedProcesses(topology)


@pytest.mark.parametrize(
    "message",
    [1, -2.5, "text", None, True, [1, "a", None], {"a": {"b": [1]}}, b"bytes", {"type": "Parcel"}, {1: 2}, [b"x"],
     {"a": b"x"}, Parcel(b"\x00\xff", {3: 0.5}), Parcel(b"", {})],
)  # fmt: skip
def test_what_a_journal_shows_of_a_message_gives_the_message_back(message: object) -> None:
    assert message_from_json(item_to_json(encode_message(message))) == message


# ── the journal as it is read ───────────────────────────────────────────────────────────────────────────────────────


def by_hand(directory: Path, rounds: int) -> Topology:
    """A run of two nodes, as if they had written it: a sends, b receives; then b's part is ahead of a's."""
    topology = Topology("t", (NodeSpec(NodeId("a"), Account), NodeSpec(NodeId("b"), Account)), joined(("a", "b")))
    a, b = (PartWriter(directory, name, Incarnation(1)) for name in "ab")
    PartWriter(directory, COORDINATOR, Incarnation(1)).close()
    channel = ChannelId("a-b")
    for writer in (a, b):
        writer.initial({"balance": 0})
    for step in range(1, rounds + 1):
        a.write(Internal(NodeId("a"), step, {"timer": "tick"}))
        a.write(Sent(NodeId("a"), step, channel, step, {"type": "Transfer", "amount": step}))
        b.write(Received(NodeId("b"), step, channel, step))
        if step % 1000 == 0:
            a.flush()
            b.flush()
    a.close()
    b.close()
    return topology


def test_a_journal_is_merged_without_being_held_in_memory(tmp_path: Path) -> None:
    rounds = 30_000
    topology = by_hand(tmp_path / "parts", rounds)
    merging = Merging(tmp_path / "parts", topology.graph, "t")
    tracemalloc.start()
    try:
        assert merging.write(tmp_path / "t.journal") == 3 * rounds
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    size = (tmp_path / "t.journal").stat().st_size
    assert peak < size / 2, f"{peak:,} bytes of memory for a journal of {size:,}"


def test_a_receipt_stands_behind_its_send_whatever_the_parts_lengths(tmp_path: Path) -> None:
    topology = by_hand(tmp_path, 500)
    sent: set[int] = set()
    for event in Merging(tmp_path, topology.graph, "t").events():
        if isinstance(event, Sent):
            sent.add(event.seq)
        elif isinstance(event, Received):
            assert event.seq in sent


def test_a_run_says_what_happened_and_why(tmp_path: Path) -> None:
    topology = by_hand(tmp_path, 3)
    replayed: Run = run_of(merge(tmp_path, topology.graph, "t"), ReplayedProcesses(topology))
    a, b = NodeId("a"), NodeId("b")
    assert replayed.order == ((a, 1), (a, 2), (a, 3), (b, 1), (b, 2), (b, 3))
    assert replayed.event(a, 2) == Internal(a, 2, {"timer": "tick"})
    assert [sent.seq for sent in replayed.sends(a, 2)] == [2]
    assert replayed.sends(b, 2) == ()
    assert replayed.cause(b, 2) == (a, 2)
    assert replayed.cause(a, 2) is None
    assert replayed.at_step(b, 2) == 2


# ── commands ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_predicates_and_proofs_of_a_live_journal_by_command(tmp_path: Path) -> None:
    strobe = Terminal(tmp_path)
    for name in ("bank.py", "bank.toml"):
        (tmp_path / name).write_text((EXAMPLES / name).read_text(encoding="utf-8"), encoding="utf-8")
    assert strobe("live", "up", "bank.toml", "--journal", "--for", "0.5").code == 0
    assert strobe("live", "journal", "bank", "run.journal").code == 0
    refused = strobe("predicate", "possibly", "athens.balance > 0", "run.journal")
    assert refused.code == 2
    assert "--topology" in refused.err
    verified = strobe.outside("sim", "verify", "run.journal", "--topology", "bank.toml")
    assert verified.code == 0, verified.err
    assert "reachable" in verified.out
    low = "athens.balance + berlin.balance + cairo.balance < 4000"  # some of it is on its way
    for question in ("possibly", "definitely"):
        answer = strobe.outside("predicate", question, low, "run.journal", "--topology", "bank.toml", "--json")
        assert answer.json["holds"] is True, answer.out + answer.err
    other = strobe.outside("predicate", "possibly", low, "run.journal", "--topology", str(EXAMPLES / "ring.toml"))
    assert other.code == 2
    assert "only in one of them" in other.err

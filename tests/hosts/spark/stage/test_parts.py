"""A stage's part of a snapshot: recorded, uploaded, prepared, acknowledged, in this order and only once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from strobe.hosts.spark.snapshot.messages import Acknowledge, Decline
from strobe.hosts.spark.snapshot.recording import Vote
from strobe.hosts.spark.stage.parts import StageParts
from strobe.model.errors import Failed, StrobeError
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.protocol.two_phase_commit.messages import Handle, Prepared, Session
from strobe.store.manifest import Prepared as Manifested
from tests.support.spark.agent_world import World
from tests.support.spark.scheduled_parts import Delayed

ONE = SnapshotId(1)


class Sink:
    """Votes when a test says so."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[tuple[int, int]] = []
        self.done: Callable[[Vote | StrobeError], None] = lambda vote: pytest.fail("nobody has asked it")

    def prepare(self, snapshot: SnapshotId, batch: int, done: Callable[[Vote | StrobeError], None]) -> None:
        self.asked.append((snapshot, batch))
        self.done = done

    def vote(self) -> None:
        handle = Handle(f"{self.name}/1")
        message = Prepared(NodeId(self.name), Session(Incarnation(1), Incarnation(1)), ONE, (handle,))
        self.done(Vote(message, (Manifested(handle, None),)))


class Case:
    """A source stage that is recorded at once; its uploads and sinks end when a test says so."""

    def __init__(self, root: Path) -> None:
        self.uploads = Delayed()
        self.world = World(root, {"a": (), "b": ("a",)}, uploads=self.uploads)
        self.gold, self.silver = Sink("gold"), Sink("silver")
        agent = self.world.stages["a"].agent
        agent.stage = replace(agent.stage, sinks=(self.gold, self.silver))
        agent.start(Incarnation(2))
        self.world.source_batch("a", 3)
        self.world.trigger(1)

    @property
    def said(self) -> list[str]:
        return [
            f"{type(m).__name__}: {m.reason}" if isinstance(m, Decline) else type(m).__name__
            for m in self.world.posted
            if isinstance(m, Acknowledge | Decline)
        ]


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    made = Case(tmp_path)
    yield made
    made.world.close()


def walk(case: Case) -> list[str]:
    """The steps in order; what was done too early or too late."""
    wrong = []
    if case.gold.asked or case.silver.asked:
        wrong.append("sinks prepare before the files are durable")
    case.uploads.finish(0)
    if case.gold.asked != [(1, 0)] or case.silver.asked != [(1, 0)]:
        wrong.append("not every sink was asked to prepare")
    case.gold.vote()
    if case.said:
        wrong.append("it is acknowledged before every sink has voted")
    case.silver.vote()
    if case.said != ["Acknowledge"]:
        wrong.append(f"in the end it has said {case.said}")
    return wrong


def test_it_is_acknowledged_when_its_files_are_durable_and_every_sink_has_prepared(case: Case) -> None:
    assert walk(case) == []
    part = case.world.parts(1)["a"]
    assert [vote.participant for vote in part.votes] == ["gold", "silver"]
    assert {name: [p.handle for p in each.prepared] for name, each in part.sinks.items()} == {
        "gold": ["gold/1"],
        "silver": ["silver/1"],
    }


@pytest.mark.parametrize("again", [False, True])
def test_a_sink_that_refuses_declines_the_snapshot_and_later_votes_mean_nothing(case: Case, again: bool) -> None:
    case.uploads.finish(0)
    if again:
        case.silver.vote()
    case.gold.done(Failed("no room"))
    case.silver.vote()
    assert case.said == ["Decline: no room"]


def test_files_that_cannot_be_stored_decline_the_snapshot_and_no_sink_is_asked(case: Case) -> None:
    *_, done = case.uploads.waiting.pop()
    done(Failed("the disk is full"))
    assert case.said == ["Decline: the disk is full"]
    assert case.gold.asked == []


@pytest.mark.parametrize("prepared", [False, True])
def test_what_is_given_up_meanwhile_is_not_gone_on_with(case: Case, prepared: bool) -> None:
    if prepared:
        case.uploads.finish(0)
    case.world.abort(1)
    if prepared:
        case.gold.vote()
        case.silver.vote()
    else:
        case.uploads.finish(0)
        assert case.gold.asked == []
    assert case.said == []


def test_results_that_come_in_a_later_life_mean_nothing(case: Case) -> None:
    case.world.stages["a"].agent.start(Incarnation(3))
    case.uploads.finish(0)
    assert case.said == []


# ── mutants ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def prepares_with_the_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    upload = StageParts.upload

    def eager(self: StageParts, snapshot: SnapshotId) -> None:
        upload(self, snapshot)
        for sink in self._stage.sinks:
            sink.prepare(snapshot, self._recordings[snapshot].batch, lambda vote: None)

    monkeypatch.setattr(StageParts, "upload", eager)


def acknowledges_at_the_first_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    voted = StageParts.voted

    def hasty(self: StageParts, it: object) -> None:
        self._stage = replace(self._stage, sinks=self._stage.sinks[:1])
        voted(self, it)  # type: ignore[arg-type]

    monkeypatch.setattr(StageParts, "voted", hasty)


@pytest.mark.parametrize("mutate", [prepares_with_the_upload, acknowledges_at_the_first_vote])
def test_a_mutant_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutate: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mutate(monkeypatch)
    made = Case(tmp_path)
    try:
        assert walk(made)
    finally:
        made.world.close()

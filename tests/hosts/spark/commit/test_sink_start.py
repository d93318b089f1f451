"""Bringing sinks up: their names, and what a changed file must not do to parts in doubt."""

from __future__ import annotations

from pathlib import Path

import pytest

import strobe
from strobe.hosts.spark.checkpoint.stage_files import stage_checkpoint
from strobe.hosts.spark.commit.ledger import SinkLedger
from strobe.hosts.spark.commit.start import _check_gone, _check_kind
from strobe.hosts.spark.connectors.simple import ConsoleSink
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId, Timeline
from tests.support.spark.commit_world import NOW, TableSink, World


def pipeline(*sinks: strobe.Sink) -> strobe.Pipeline:
    made = strobe.Pipeline("job")
    made.stage(uid="gold", to=list(sinks))(lambda spark: spark)
    return made


def test_a_sink_can_have_a_uid_and_two_of_a_stage_cannot_have_the_same() -> None:
    pipeline(ConsoleSink().named("a"), ConsoleSink().named("b"), ConsoleSink()).check()
    with pytest.raises(Misuse, match="several sinks with the uid 'a'"):
        pipeline(ConsoleSink().named("a"), ConsoleSink().named("a")).check()


@pytest.mark.parametrize("uid", ["0", "17", "", "../up", "a/b"])
def test_a_number_or_a_path_is_no_uid_of_a_sink(uid: str) -> None:
    with pytest.raises(Misuse):
        ConsoleSink().named(uid)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


@pytest.fixture
def ledger(world: World) -> SinkLedger:
    """With one part in doubt."""
    world.write()
    world.vote(world.begin())
    world.crash()
    return SinkLedger(world.home, "gold/0", lambda: NOW)


def commits_of_spark(world: World) -> None:
    """What the stage has written, its Spark checkpoint has as committed."""
    commits = stage_checkpoint(world.home, NodeId("gold")) / "commits"
    commits.mkdir(parents=True, exist_ok=True)
    for batch in range(world.batch + 1):
        (commits / str(batch)).touch()


def test_a_sink_with_parts_in_doubt_cannot_become_another_kind_of_sink(ledger: SinkLedger) -> None:
    class OtherSink(TableSink):
        pass

    _check_kind(TableSink(None), "gold/0", ledger)  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="was a TableSink and is a OtherSink now, but parts of it are still in doubt"):
        _check_kind(OtherSink(None), "gold/0", ledger)  # type: ignore[arg-type]


def test_a_sink_with_parts_in_doubt_cannot_vanish_from_the_file_unnoticed(ledger: SinkLedger, world: World) -> None:
    _check_gone(world.home, {"gold/0"}, drop=False)
    with pytest.raises(Misuse, match="job/gold/0/1/1"):
        _check_gone(world.home, {"gold/other"}, drop=False)
    _check_gone(world.home, {"gold/other"}, drop=True)
    assert SinkLedger(world.home, "gold/0", lambda: NOW).entries, "they are left as they are"


def test_nor_can_one_with_rows_that_no_snapshot_has_made_visible(world: World) -> None:
    world.write()
    world.take_snapshot()
    world.write()
    world.write()
    commits_of_spark(world)
    with pytest.raises(Misuse, match="what was staged since, of batches 1–2"):
        _check_gone(world.home, set(), drop=False)
    _check_gone(world.home, set(), drop=True)
    _check_gone(world.home, set(), drop=False)  # given up once is given up


def test_a_sink_that_has_shown_everything_may_go_and_begins_again_when_it_is_back(world: World) -> None:
    world.write()
    world.take_snapshot()
    commits_of_spark(world)
    _check_gone(world.home, set(), drop=False)
    world.batch += 5  # the stage goes on without it
    commits_of_spark(world)
    _check_gone(world.home, set(), drop=False)
    again = SinkLedger(world.home, "gold/0", lambda: NOW)
    again.open("TableSink", Timeline(1), world.batch, world.place / "staging")
    assert again.fresh
    again.begin()
    assert (again.ledger.boundary, again.ledger.closed) == (world.batch, False)
    assert [e.state.value for e in again.ledger.done] == ["committed"]

"""Bringing sinks up: their names, and what a changed file must not do to parts in doubt."""

from __future__ import annotations

from pathlib import Path

import pytest

import strobe
from strobe.hosts.spark.connectors.simple import ConsoleSink
from strobe.hosts.spark.sink_ledger import SinkLedger
from strobe.hosts.spark.sink_start import _check_gone, _check_kind
from strobe.model.errors import Misuse
from tests.spark.commit_world import NOW, TableSink, World


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
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SinkLedger:
    """With one part in doubt."""
    world = World(tmp_path, monkeypatch)
    world.write()
    world.vote(world.begin())
    world.crash()
    return SinkLedger(world.home, "gold/0", lambda: NOW)


def test_a_sink_with_parts_in_doubt_cannot_become_another_kind_of_sink(ledger: SinkLedger) -> None:
    class OtherSink(TableSink):
        pass

    _check_kind(TableSink(None), "gold/0", ledger)  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="was a TableSink and is a OtherSink now, but parts of it are still in doubt"):
        _check_kind(OtherSink(None), "gold/0", ledger)  # type: ignore[arg-type]


def test_a_sink_with_parts_in_doubt_cannot_vanish_from_the_file_unnoticed(ledger: SinkLedger, tmp_path: Path) -> None:
    _check_gone(tmp_path, "job", {"gold/0"}, drop=False)
    with pytest.raises(Misuse, match="job/gold/0/1/1"):
        _check_gone(tmp_path, "job", {"gold/other"}, drop=False)
    _check_gone(tmp_path, "job", {"gold/other"}, drop=True)

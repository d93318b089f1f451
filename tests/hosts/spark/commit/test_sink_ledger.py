"""A sink's ledger: what it remembers over crashes, and what it refuses to guess."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from strobe.hosts.spark.commit.ledger import PartState, SinkLedger, read_ledgers
from strobe.hosts.spark.connectors.base import Part
from strobe.hosts.spark.home.job_home import JobHome
from strobe.model.errors import Damaged, Fenced
from strobe.model.ids import SnapshotId, Timeline

NAME = "gold/0"
NOW = "2031-05-17T09:30:00.250Z"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[JobHome]:
    made = JobHome(tmp_path / "home", "job")
    made.claim(lambda why: None)
    yield made
    made.release()


def part(snapshot: int, after: int, through: int) -> Part:
    return Part(f"job/gold/0/1/{snapshot}", SnapshotId(snapshot), Timeline(1), after, through)


def opened(home: JobHome, *, committed: int = -1, timeline: int = 1) -> SinkLedger:
    ledger = SinkLedger(home, NAME, lambda: NOW)
    ledger.open("TableSink", Timeline(timeline), committed, home.path(home.layout.staging(NAME, Timeline(timeline))))
    ledger.begin()
    return ledger


def prepared(ledger: SinkLedger, of: Part) -> None:
    ledger.note(of, "a table")
    ledger.prepared(of.handle, {"x": of.snapshot}, "by hand", staged=False)


def test_what_is_prepared_is_there_after_a_crash_with_its_data(home: JobHome) -> None:
    prepared(opened(home), part(3, -1, 4))
    entry = opened(home).entries[0]
    assert (entry.part, entry.state, entry.data) == (part(3, -1, 4), PartState.PREPARED, {"x": 3})
    assert opened(home).ledger.boundary == 4


def test_a_ledger_that_is_found_is_durable_before_anything_relies_on_it(
    home: JobHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who wrote it may have been killed between its rename and the sync of its directory."""
    prepared(opened(home), part(3, -1, 4))
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    opened(home)
    assert str(home.path(home.layout.ledger(NAME)).parent) in synced


def test_what_was_only_noted_is_dropped_and_the_boundary_stays(home: JobHome) -> None:
    opened(home).note(part(3, -1, 4), "a table")
    assert read_ledgers(home.home, "job")[NAME].entries[0].state is PartState.PREPARING
    again = opened(home)
    assert again.entries == ()
    assert again.ledger.boundary == -1


def test_a_sink_that_is_new_in_a_job_begins_after_the_last_batch_and_remembers_where(home: JobHome) -> None:
    opened(home, committed=7)
    assert opened(home, committed=12).ledger.origin == 7
    assert opened(home, committed=12).ledger.boundary == 7


def test_a_new_timeline_begins_where_its_stage_was_restored(home: JobHome) -> None:
    ledger = opened(home)
    prepared(ledger, part(3, -1, 4))
    ledger.forget(part(3, -1, 4).handle, PartState.COMMITTED)
    later = opened(home, committed=2, timeline=2)
    assert later.ledger.boundary == 2
    assert [e.handle for e in later.ledger.done] == ["job/gold/0/1/3"]


def test_parts_that_were_thrown_away_are_remembered_for_good(home: JobHome) -> None:
    ledger = opened(home)
    for n in range(120):
        prepared(ledger, part(n + 1, n - 1, n))
        ledger.forget(part(n + 1, n - 1, n).handle, PartState.ABORTED if n == 0 else PartState.COMMITTED)
    done = opened(home).ledger.done
    assert done[0].state is PartState.ABORTED
    assert len(done) == 51


def test_a_driver_that_was_given_up_cannot_write_it(home: JobHome, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = opened(home)
    home.stop_heartbeat()
    monkeypatch.setattr("strobe.hosts.spark.home.job_home.LEASE", 0.0)
    newer = JobHome(home.home, "job")
    newer.claim(lambda why: None)
    with pytest.raises(Fenced):
        prepared(ledger, part(3, -1, 4))
    assert opened(newer).entries == ()
    newer.release()


def test_a_ledger_that_is_gone_while_rows_are_staged_is_damage(home: JobHome) -> None:
    staging = home.path(home.layout.staging(NAME, Timeline(1)))
    (staging / "1/batch-00000000").mkdir(parents=True)
    (staging / "1/batch-00000000/part-0.parquet").touch()
    with pytest.raises(Damaged, match="is gone, but"):
        opened(home)


def test_a_ledger_that_cannot_be_read_is_damage_and_named(home: JobHome) -> None:
    opened(home)
    path = home.path(home.layout.ledger(NAME))
    path.write_text("{")
    with pytest.raises(Damaged, match=r"ledger\.json"):
        opened(home)

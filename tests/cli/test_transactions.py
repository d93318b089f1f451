"""`strobe transactions`, as a person types it: over ledgers that a driver has left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strobe.cli.live_view import doubts
from strobe.hosts.spark.commit.ledger import PartState, SinkLedger
from strobe.hosts.spark.snapshot.metrics import SinkStatus
from strobe.model.ids import SnapshotId
from strobe.model.kind import Kind
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JobLayout, SavepointLayout
from strobe.store.snapshots import SnapshotStore
from tests.cli.conftest import Strobe
from tests.support.spark.commit_world import NOW, World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Snapshot 1 is committed, 2 is complete and in doubt, 3 was given up. The driver is gone."""
    world = World(tmp_path / ".strobe", monkeypatch)
    world.write(2)
    world.take_snapshot()
    world.sink.down = OSError("connection refused")
    world.write()
    world.take_snapshot(settle=False)
    world.await_(lambda: world.work.status().failures > 0)
    world.write()
    world.vote(world.begin())
    world.crash()
    store = SnapshotStore(FilesystemStore(world.place), JobLayout("job"), "job")
    for manifest in world.table.manifests:
        with store.begin(manifest.snapshot) as session:
            session.complete(manifest)
    return world


def test_each_part_is_shown_with_what_became_of_it(strobe: Strobe, world: World) -> None:
    done = strobe("transactions", "job", "--json")
    assert done.code == 0
    assert done.json["running"] is False
    assert [(p["sink"], p["snapshot"], p["state"], p["decided_by"]) for p in done.json["parts"]] == [
        ("gold/0", 1, "committed", 1), ("gold/0", 2, "in doubt", 2), ("gold/0", 3, "prepared", None),
    ]  # fmt: skip
    assert done.json["parts"][0]["time"] == NOW


def test_it_says_what_will_happen_and_what_can_be_done_by_hand(strobe: Strobe, world: World) -> None:
    world.start_points("")
    world.home.claim(pytest.fail)
    ledger = SinkLedger(world.home, "gold/0", lambda: NOW)
    entries = tuple(replace(e, by_hand="COMMIT PREPARED 'x'") for e in ledger.entries)
    ledger._write(replace(ledger.ledger, entries=entries))
    world.home.release()
    out = strobe("transactions", "job").out
    assert "`strobe run` commits it when it resumes the job" in out
    assert "job/gold/0/1/2  in a table in memory" in out
    assert "by hand: COMMIT PREPARED 'x'" in out
    assert "1 prepared: the next complete snapshot makes it visible" in out


def test_what_a_complete_snapshot_names_is_in_doubt_also_if_the_ledger_does_not_know_yet(
    strobe: Strobe, world: World
) -> None:
    world.start_points("")
    world.home.claim(pytest.fail)
    ledger = SinkLedger(world.home, "gold/0", lambda: NOW)
    entries = tuple(replace(e, state=PartState.PREPARED, decided_by=None) for e in ledger.entries)
    ledger._write(replace(ledger.ledger, entries=entries))
    world.home.release()
    assert [p["state"] for p in strobe("transactions", "job", "--json").json["parts"]] == [
        "committed", "in doubt", "prepared",
    ]  # fmt: skip


def test_of_a_snapshot_only_what_it_names_is_shown(strobe: Strobe, world: World) -> None:
    done = strobe("transactions", "job/1", "--json").json
    assert done["snapshot"] == 1
    assert [(p["snapshot"], p["state"]) for p in done["parts"]] == [(1, "committed")]
    assert [(p["snapshot"], p["state"]) for p in strobe("transactions", "job/2", "--json").json["parts"]] == [
        (2, "in doubt")
    ]


def test_a_savepoint_without_its_job_does_not_know_what_became_of_its_parts(
    strobe: Strobe, world: World, tmp_path: Path
) -> None:
    store = SnapshotStore(FilesystemStore(tmp_path / "sav"), SavepointLayout("", SnapshotId(2)), "job")
    with store.begin(SnapshotId(2)) as session:
        session.complete(replace(world.table.manifests[1], kind=Kind.SAVEPOINT))
    elsewhere = strobe("transactions", "sav", "--home", "other")
    assert "1 unknown: only the home of job job knows" in elsewhere.out
    assert strobe("transactions", "sav", "--json").json["parts"][0]["state"] == "in doubt"


def test_a_job_that_is_not_there_is_refused_and_the_jobs_are_named(strobe: Strobe, world: World) -> None:
    done = strobe("transactions", "nobody")
    assert done.code == 2
    assert "There is no snapshot 'nobody'" in done.err
    assert "The jobs there: job" in done.err


def test_a_job_without_such_sinks_has_none(strobe: Strobe, tmp_path: Path) -> None:
    (tmp_path / ".strobe/jobs/plain").mkdir(parents=True)
    assert "none of its sinks delivers on snapshot" in strobe("transactions", "plain").out


def test_status_of_a_job_that_has_ended_names_what_is_in_doubt(strobe: Strobe, world: World) -> None:
    out = strobe("status", "job").out
    assert "in doubt: job/gold/0/1/2" in out
    assert "nothing is lost: `strobe run` commits it; see `strobe transactions job`" in out


def test_status_says_why_a_sink_does_not_come_to_its_end() -> None:
    fine = SinkStatus("gold/0", "a table", 1, 0)
    stuck = SinkStatus("gold/1", "a table", 2, 1, failures=4, error="connection refused")
    assert [t.plain for t in doubts([fine, stuck])] == [
        "sink gold/1: 2 part(s) in doubt, 4 attempts failed: connection refused"
    ]

"""`/api/v1` over homes that were made without Spark, and jobs that are only a control API."""

from __future__ import annotations

import http.client
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from strobe.model.errors import Failed, Misuse
from strobe.model.kind import Kind
from strobe.store.layout import JobLayout
from strobe.web.home_reader import HomeReader
from strobe.web.operations import OPERATIONS
from strobe.web.statuses import Statuses
from strobe.web.views import JobRow, JobView, SnapshotPage, SnapshotView
from tests.hostile.answers import VALID
from tests.support.waiting import eventually
from tests.web.homes import (
    LEDGER,
    a_manifest,
    a_stage,
    a_status,
    put_history,
    put_manifest,
    put_runtime,
    running,
    under_way,
    wide,
)
from tests.web.pages import Served


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for snapshot in (2, 3):
        put_manifest(tmp_path, a_manifest("ledger", snapshot))
    put_history(tmp_path, "ledger", 3, fails=2)
    put_runtime(tmp_path, "ledger", error="stage 'balances' failed for good", state="failed")
    return tmp_path


@pytest.fixture
def page(home: Path) -> Iterator[Served]:
    with Served(home) as served:
        yield served


# ── jobs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_that_does_not_run_is_shown_from_what_it_left(page: Served) -> None:
    row = msgspec.convert(page.get("/jobs"), list[JobRow])[0]
    assert (row.name, row.state, row.live, row.stages) == ("ledger", "failed", False, 5)
    assert row.error == "stage 'balances' failed for good"
    assert row.last is not None
    assert row.last.snapshot == 3
    job = msgspec.convert(page.get("/jobs/ledger"), JobView)
    assert job.known_by == "snapshot"
    assert {s.uid for s in job.stages} == set(LEDGER)
    assert {(c.producer, c.consumer): c.rows_in_flight for c in job.channels}[("transfers", "postings")] == 17


def test_a_running_job_is_asked(home: Path) -> None:
    status = a_status(
        "ledger", stages=[a_stage("transfers", a_new_figure=7), a_stage("balances", rows_in=0, lag_rows=0)]
    )
    with running(home, "ledger", lambda body: status), Served(home) as page:
        job = msgspec.convert(page.get("/jobs/ledger"), JobView)
    assert (job.job.state, job.known_by) == ("running", "job")
    assert [(s.uid, s.mood) for s in job.stages] == [("transfers", "busy"), ("balances", "idle")]
    assert job.stages[0].figures["a_new_figure"] == 7


def test_a_stage_that_holds_inputs_for_a_barrier_is_seen_as_held(home: Path) -> None:
    status = under_way(
        "ledger", {"transfers": ("acknowledged", [], []), "flagged": ("aligning", ["transfers"], ["suspects"])}
    )
    with running(home, "ledger", lambda body: status), Served(home) as page:
        job = msgspec.convert(page.get("/jobs/ledger"), JobView)
    assert {s.uid: s.mood for s in job.stages}["flagged"] == "held"
    assert [(b.stage, b.waits_for) for b in job.barriers] == [("transfers", []), ("flagged", ["suspects"])]
    assert job.under_way[0]["snapshot"] == 4


def test_a_job_of_an_older_version_that_says_less_is_shown_all_the_same(home: Path) -> None:
    status = {"state": "running", "stages": [{"uid": "transfers", "state": "running"}]}
    with running(home, "ledger", lambda body: status), Served(home) as page:
        job = msgspec.convert(page.get("/jobs/ledger"), JobView)
    assert {s.uid for s in job.stages} == set(LEDGER)  # its newest snapshot has the graph


def test_a_job_that_does_not_answer_is_shown_as_such_and_the_others_are_not_held_up(home: Path) -> None:
    end = threading.Event()
    try:
        with (
            running(home, "ledger", lambda body: a_status("ledger")),
            running(home, "stuck", lambda body: end.wait(60)),
            Served(home) as page,
        ):
            rows = {row["name"]: row for row in page.get("/jobs")}
            assert rows["ledger"]["state"] == "running"
            assert rows["stuck"]["state"] == "silent"
            assert "does not answer" in rows["stuck"]["trouble"]
            assert page.get("/jobs/ledger")["job"]["trouble"] == ""
            end.set()
    finally:
        end.set()


def test_nobody_waits_twice_for_a_silent_job(home: Path) -> None:
    end, asked = threading.Event(), threading.Semaphore(0)

    def silent(body: dict[str, Any]) -> Any:
        asked.release()
        end.wait(60)
        return a_status("stuck")

    with running(home, "stuck", silent):
        statuses = Statuses(home, limit=0.3)
        assert "does not answer" in statuses.job("stuck").trouble
        assert "does not answer" in statuses.job("stuck").trouble
        assert asked.acquire(timeout=60)
        end.set()
        eventually(lambda: statuses.job("stuck").status is not None, "it answers")
        assert statuses.job("stuck").trouble == ""


def test_unknown_names_are_not_found_in_words(page: Served) -> None:
    for path in ("/jobs/nope", "/jobs/ledgr", "/jobs/nope/snapshots", "/systems/nope", "/jobs/nope/snapshots/1"):
        status, said = page.refused(path)
        assert status == 404
        assert "The jobs there: ledger." in said["next"]
    assert "Did you mean 'ledger'?" in page.refused("/jobs/ledgr")[1]["next"]


def test_an_unknown_snapshot_is_not_found_in_words(page: Served) -> None:
    status, said = page.refused("/jobs/ledger/snapshots/99")
    assert (status, said["error"]) == (404, "Job 'ledger' has no snapshot 99.")
    assert said["next"] == "Those that are kept: 2, 3."


def test_a_snapshot_of_a_newer_format_is_said_to_be_one(home: Path, page: Served) -> None:
    newer = home / JobLayout("later").root / "snapshots" / "chk-000001" / "manifest.json"
    newer.parent.mkdir(parents=True)
    newer.write_text('{"format": 99}')
    row = page.get("/jobs/later/snapshots")["rows"][0]
    assert row["status"] == "unreadable"
    assert "has format 99; this Strobe reads formats up to 2" in row["reason"]
    status, said = page.refused("/jobs/later/snapshots/1")
    assert status in (404, 409)
    assert "format 99" in said["error"]
    assert {row["name"] for row in page.get("/jobs")} == {"ledger", "later"}


# ── snapshots ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_history_has_what_failed_and_what_is_gone(page: Served) -> None:
    seen = msgspec.convert(page.get("/jobs/ledger/snapshots"), SnapshotPage)
    assert [(r.snapshot, r.status, r.kept) for r in seen.rows] == [
        (3, "complete", True), (2, "failed", False), (1, "complete", False)
    ]  # fmt: skip
    assert (seen.total, seen.failed) == (3, 1)
    gone = msgspec.convert(page.get("/jobs/ledger/snapshots/1"), SnapshotView)
    assert gone.kept is False
    assert {n.node for n in gone.nodes} == set(LEDGER)


def test_the_phases_of_a_row_add_up_to_its_duration(home: Path) -> None:
    (home / JobLayout("ledger").history).unlink()
    with Served(home) as page:
        row = msgspec.convert(page.get("/jobs/ledger/snapshots"), SnapshotPage).rows[0]
    assert sum(row.phases.values()) == pytest.approx(row.duration_ms)


def test_a_snapshot_that_is_kept_shows_all_of_itself(page: Served) -> None:
    one = msgspec.convert(page.get("/jobs/ledger/snapshots/3"), SnapshotView)
    assert one.kept
    assert len(one.root) == 64
    assert {n.node for n in one.nodes} == set(LEDGER)
    assert {(p.channel, p.consumer, p.rows) for p in one.positions} >= {("transfers", "postings", 17)}
    assert [(s.sink, s.handle) for s in one.sinks] == [("flagged/delta", None)]


def test_ten_thousand_snapshots_come_page_by_page(home: Path) -> None:
    put_history(home, "ledger", 10_000, fails=100)
    with Served(home) as page:
        first = msgspec.convert(page.get("/jobs/ledger/snapshots?limit=100"), SnapshotPage)
        assert (first.total, len(first.rows), first.rows[0].snapshot) == (10_000, 100, 10_000)
        then = page.get(f"/jobs/ledger/snapshots?limit=100&before={first.rows[-1].snapshot}")
        assert then["rows"][0]["snapshot"] == first.rows[-1].snapshot - 1
        assert len(first.chart["time"]) <= 2000
        assert sum(first.chart["failed"]) == 100  # a failure is never thinned out
        assert page.get("/jobs/ledger/snapshots/5")["past"]["stages"].keys() == LEDGER.keys()


def test_a_savepoint_in_the_jobs_home_can_be_looked_into(home: Path, page: Served) -> None:
    manifest = a_manifest("ledger", 7, kind=Kind.SAVEPOINT)
    put_manifest(home, manifest)
    place = home / JobLayout("ledger").savepoint(manifest.snapshot)
    (place / "blobs").mkdir(parents=True)
    (home / JobLayout("ledger").manifest(manifest.snapshot)).rename(place / "manifest.json")
    assert page.get("/jobs/ledger/snapshots/7")["past"]["kind"] == "savepoint"
    assert page.get("/jobs/ledger/snapshots/7/restorable") == {"snapshot": 7, "why_not": ""}


def test_a_checkpoint_without_its_channels_is_not_restorable_and_says_why(page: Served) -> None:
    assert page.get("/jobs/ledger/snapshots/3/restorable")["why_not"].startswith("Channel ")


def test_dispose_deletes_a_checkpoint_of_a_job_that_does_not_run(home: Path, page: Served) -> None:
    (home / JobLayout("ledger").incarnation).write_text(
        json.dumps({"incarnation": 1, "timeline": 1, "snapshot": 3, "generation": 0})
    )
    assert page.post("/jobs/ledger/snapshots/2/dispose")["done"]["snapshot"] == 2
    assert page.get("/jobs")[0]["retained"] == [3]


# ── orders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_orders_go_to_the_job_as_they_are_and_its_answers_come_back(home: Path) -> None:
    given: list[tuple[str, dict[str, Any]]] = []

    def taker(name: str) -> Any:
        def take(body: dict[str, Any]) -> Any:
            given.append((name, body))
            return VALID["spark", "POST", f"/v1/{name}"]

        return take

    names = ("checkpoint", "savepoint", "stop", "cancel")
    with running(home, "ledger", lambda b: a_status("ledger"), **{n: taker(n) for n in names}), Served(home) as page:
        assert page.post("/jobs/ledger/checkpoint") == {"done": VALID["spark", "POST", "/v1/checkpoint"]}
        page.post("/jobs/ledger/savepoint", {"directory": "/backup/x"})
        page.post("/jobs/ledger/stop", {"drain": True})
        page.post("/jobs/ledger/cancel", {"retention": "delete"})
    assert given == [
        ("checkpoint", {}), ("savepoint", {"directory": "/backup/x"}), ("stop", {"drain": True}),
        ("cancel", {"retention": "delete"}),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "status"), [(Misuse("no", next="do this"), 409), (Failed("no", next="do this"), 500)]
)
def test_a_refusal_of_the_job_comes_through(home: Path, error: Exception, status: int) -> None:
    def refuse(body: dict[str, Any]) -> Any:
        raise error

    with running(home, "ledger", lambda b: a_status("ledger"), checkpoint=refuse), Served(home) as page:
        assert page.refused("/jobs/ledger/checkpoint", "POST") == (
            status, {"error": "no", "untouched": "", "next": "do this"}
        )  # fmt: skip


def test_an_order_to_a_job_that_does_not_run_is_refused(page: Served) -> None:
    status, said = page.refused("/jobs/ledger/stop", "POST")
    assert (status, said["error"]) == (409, "'ledger' is not running.")


@pytest.mark.parametrize(("path", "body"), [
    ("/jobs/ledger/savepoint", {"directory": 3}), ("/jobs/ledger/cancel", {"unknown": 1}),
    ("/jobs/ledger/stop", {"drain": "yes"}), ("/systems/ledger/kill", {}),
])  # fmt: skip
def test_a_request_that_does_not_fit_is_refused(page: Served, path: str, body: dict[str, Any]) -> None:
    status, said = page.refused(path, "POST", body)
    assert status == 400
    assert "cannot be read" in said["error"]


def test_a_restore_is_not_planned_with_a_file_that_nobody_named(page: Served) -> None:
    status, said = page.refused("/jobs/ledger/snapshots/3/plan", "POST", {"fork": "staging"})
    assert status == 409
    assert "strobe run -s ledger/3 FILE --name staging" in said["next"]


# ── the description ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_description_has_every_operation_and_every_record_that_it_names(page: Served) -> None:
    document = page.get("/openapi.json")
    described = {(m.upper(), path) for path, methods in document["paths"].items() for m in methods}
    assert {(o.method, "/api/v1" + o.path.replace(":int", "")) for o in OPERATIONS} <= described
    named = {part.partition('"')[0] for part in json.dumps(document).split("#/components/schemas/")[1:]}
    assert named <= document["components"]["schemas"].keys()


def test_answers_are_what_the_description_says(home: Path) -> None:
    samples = {"job": "ledger", "snapshot": "3"}
    with running(home, "ledger", lambda b: a_status("ledger")), Served(home) as page:
        for operation in OPERATIONS:
            if operation.method == "GET":
                path = operation.path.replace(":int", "").format(**samples)
                msgspec.convert(page.get(path), operation.answer)


# ── events ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Stream:
    """Server-sent events, as they come."""

    def __init__(self, page: Served, watch: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=60)
        self._connection.request("GET", f"/api/v1/events?watch={watch}", headers=page._bearer)
        self._answer = self._connection.getresponse()
        assert self._answer.getheader("content-type", "").startswith("text/event-stream")

    def next(self) -> tuple[str, Any]:
        kind = ""
        while True:
            line = self._answer.readline().decode().rstrip("\n")
            if line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data: "):
                return kind, json.loads(line[6:])

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


def test_an_event_comes_when_something_has_changed(home: Path) -> None:
    status = a_status("ledger")
    with running(home, "ledger", lambda b: status), Served(home) as page:
        stream = Stream(page, "job/ledger")
        kind, seen = stream.next()
        assert (kind, seen["stages"][0]["figures"]["batch"]) == ("seen", 41)
        status["stages"][0]["batch"] = 42
        assert stream.next()[1]["stages"][0]["figures"]["batch"] == 42
        stream.close()


def test_the_end_of_a_job_is_an_event(home: Path) -> None:
    with Served(home) as page:
        with running(home, "ledger", lambda b: a_status("ledger")):
            stream = Stream(page, "job/ledger")
            assert stream.next()[1]["job"]["state"] == "running"
        while (seen := stream.next()[1])["job"]["live"]:
            pass
        assert seen["known_by"] == "snapshot"
        stream.close()


def test_a_job_is_asked_only_while_somebody_looks(home: Path) -> None:
    asked = threading.Semaphore(0)

    def status(body: dict[str, Any]) -> Any:
        asked.release()
        return a_status("ledger")

    with running(home, "ledger", status), Served(home) as page:
        stream = Stream(page, "job/ledger")
        for _ in range(3):
            assert asked.acquire(timeout=60)
        stream.close()
        while asked.acquire(timeout=1.5):  # the last looks; then none for three times as long as between two
            pass
        assert page.get("/session")["home"] == str(home)
        assert not asked.acquire(blocking=False)


def test_two_who_look_cost_as_much_as_one(home: Path) -> None:
    with running(home, "ledger", lambda b: a_status("ledger")), Served(home) as page:
        first, second = Stream(page, "jobs"), Stream(page, "jobs")
        assert first.next()[1][0]["name"] == second.next()[1][0]["name"] == "ledger"
        first.close()
        second.close()


def test_what_cannot_be_watched_is_refused(page: Served) -> None:
    assert page.refused("/events?watch=everything")[0] == 400
    stream = Stream(page, "job/nope")
    assert stream.next() == ("trouble", {
        "error": f"There is no job 'nope' in {page.get('/session')['home']}.", "untouched": "Nothing was changed.",
        "next": "The jobs there: ledger.",
    })  # fmt: skip
    stream.close()


def test_what_nobody_expected_is_an_event_too(page: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(reader: HomeReader, name: str) -> Any:
        raise KeyError("uid")

    monkeypatch.setattr(HomeReader, "job", failing)
    stream = Stream(page, "job/ledger")
    kind, said = stream.next()
    assert (kind, said["error"]) == ("trouble", "It could not be read: KeyError: 'uid'.")
    stream.close()


def test_a_graph_of_sixty_stages_is_one_answer(home: Path) -> None:
    put_manifest(home, a_manifest("wide", 1, wide(60)))
    with Served(home) as page:
        job = msgspec.convert(page.get("/jobs/wide"), JobView)
    assert len(job.stages) == len(job.drawing.boxes) == 60


def test_a_snapshot_can_be_asked_with_sql(page: Served) -> None:
    at = "/jobs/ledger/snapshots/3/sql"
    found = page.post(at, {"query": "select stage, batch from meta.stages order by stage;"})
    assert found == {
        "columns": ["stage", "batch"], "rows": [[uid, "30"] for uid in sorted(LEDGER)], "more": False,
    }  # fmt: skip
    assert "meta.stages" in {row[0] for row in page.post(at, {"query": ".tables"})["rows"]}
    assert page.post(at, {"query": "select * from range(600)"})["more"] is True


def test_a_query_is_on_no_command_line(page: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user of the machine can read those, and a query may hold what nobody else should see."""
    lines: list[list[str]] = []
    run = subprocess.run

    def noting(line: list[str], **options: Any) -> Any:
        lines.append(line)
        return run(line, **options)

    monkeypatch.setattr(subprocess, "run", noting)
    found = page.post("/jobs/ledger/snapshots/3/sql", {"query": "select 'Größe 4711' as account"})
    assert found["rows"] == [["Größe 4711"]]
    assert len(lines) == 1
    assert "4711" not in " ".join(lines[0])


@pytest.mark.parametrize("query", [
    "", "from nowhere", "select '\0",
    "select * from read_csv('/etc/passwd')", "--json", ".help", "delete from meta.stages",
    "from meta.stages) limit 1; copy (select 1) to '/tmp/x'; from (from meta.stages",
])  # fmt: skip
def test_a_query_that_cannot_be_answered_is_refused_in_words(page: Served, query: str) -> None:
    status, said = page.refused("/jobs/ledger/snapshots/3/sql", "POST", {"query": query})
    assert status in (409, 500)
    assert said["error"]


def test_a_file_where_one_stands_is_not_taken_for_a_module(
    page: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "click.py").write_text("raise SystemExit('imported from where one stands')")
    monkeypatch.chdir(tmp_path)
    assert page.post("/jobs/ledger/snapshots/3/sql", {"query": "select 1 as one"})["rows"] == [["1"]]


def test_the_metrics_of_all_jobs_are_one_scrape(home: Path) -> None:
    end = threading.Event()
    try:
        with (
            running(home, "ledger", lambda b: a_status("ledger")),
            running(home, "stuck", lambda b: end.wait(60)),
            Served(home) as page,
        ):
            status, headers, body = page.ask("GET", "/metrics", headers=page._bearer)
            end.set()
    finally:
        end.set()
    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    lines = body.decode().splitlines()
    assert 'strobe_up{kind="spark",name="ledger"} 1.0' in lines
    assert 'strobe_up{kind="spark",name="stuck"} 0.0' in lines
    assert any(line.startswith("strobe_") and 'stage="balances"' in line for line in lines)
    with Served(home) as page:
        assert page.ask("GET", "/metrics")[0] == 401

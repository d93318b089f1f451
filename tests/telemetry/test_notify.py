"""Who is told of failures: signed, again if need be, and never in the way."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strobe.cli.watching import Watchers, Watching
from strobe.hosts.spark.job.observer import JobObserver
from strobe.model.errors import Misuse
from strobe.model.ids import SnapshotId
from strobe.model.invariants import Outcome, Verdict
from strobe.store.releases import Release
from strobe.telemetry.notify import Notice, Notifier, read_secret, signature, target
from tests.telemetry.samples import receiver

FAILED = Notice("job.failed", "shop", "stage 'clicks' failed for good: postgresql://a:secret-word@db/x", {"n": 1})


def test_a_webhook_gets_the_event_as_json_signed() -> None:
    with receiver() as made:
        notifier = Notifier([target(f"{made.url}/hook", b"key")])
        notifier.tell(FAILED)
        (post,) = made.wait_for(1)
        notifier.stop()
    event = json.loads(post.body)
    assert (post.path, event["type"], event["job"], event["details"]) == ("/hook", "job.failed", "shop", {"n": 1})
    assert post.headers["Content-Type"] == "application/json"
    assert post.headers["X-Strobe-Event"] == "job.failed"
    assert post.headers["X-Strobe-Delivery"] == event["id"] == FAILED.id
    assert post.headers["X-Strobe-Signature"] == signature(b"key", post.headers["X-Strobe-Timestamp"], post.body)
    assert signature(b"other", post.headers["X-Strobe-Timestamp"], post.body) != post.headers["X-Strobe-Signature"]


def test_no_password_leaves_with_an_event() -> None:
    assert b"secret-word" not in FAILED.to_json()
    assert json.loads(FAILED.to_json())["message"].startswith("stage 'clicks' failed")


def test_without_a_secret_nothing_is_signed() -> None:
    with receiver() as made:
        notifier = Notifier([target(made.url, None)])
        notifier.tell(FAILED)
        (post,) = made.wait_for(1)
        notifier.stop()
    assert "X-Strobe-Signature" not in post.headers


def test_what_fails_for_now_is_sent_again_as_the_same_delivery() -> None:
    with receiver(503, 429, 500) as made:
        notifier = Notifier([target(made.url, None)], first_pause=0.01)
        notifier.tell(FAILED)
        posts = made.wait_for(4)
        notifier.stop()
        assert len(made.posts) == 4
    assert {post.headers["X-Strobe-Delivery"] for post in posts} == {FAILED.id}


@pytest.mark.parametrize("code", [400, 401, 404, 302])
def test_what_is_refused_is_not_sent_again_nor_elsewhere(code: int) -> None:
    with receiver(code) as made:
        notifier = Notifier([target(made.url, None)], first_pause=0.01)
        notifier.tell(FAILED)
        notifier.tell(Notice("checkpoint.failed", "shop", "a second one"))
        posts = made.wait_for(2)
        notifier.stop()
    assert [post.headers["X-Strobe-Event"] for post in posts] == ["job.failed", "checkpoint.failed"]


def test_a_receiver_that_is_away_is_in_nobodys_way() -> None:
    with receiver() as made:
        notifier = Notifier([target("http://127.0.0.1:9", None), target(made.url, None)], first_pause=0.01)
        notifier.tell(FAILED)
        made.wait_for(1)
        notifier.stop(1.0)


def test_too_many_messages_are_dropped_and_nobody_waits(caplog: pytest.LogCaptureFixture) -> None:
    held = threading.Event()

    class Slow:
        def deliver(self, notice: Notice) -> None:
            held.wait()

        def describe(self) -> str:
            return "slow"

    notifier = Notifier([Slow()])
    for _ in range(1100):
        notifier.tell(FAILED)
    assert "too many messages wait" in caplog.text
    held.set()
    notifier.stop()


def test_a_command_gets_the_event_on_its_standard_input(tmp_path: Path) -> None:
    program = tmp_path / "tell.py"
    program.write_text(
        "import os, sys\n"
        f"with open({str(tmp_path / 'told')!r}, 'w') as file:\n"
        "    file.write(os.environ['STROBE_EVENT'] + ' ' + os.environ['STROBE_JOB'] + ' ' + sys.stdin.read())\n"
    )
    notifier = Notifier([target(f"{sys.executable} '{program}'", None)])
    notifier.tell(FAILED)
    notifier.stop()
    type, job, event = (tmp_path / "told").read_text().split(" ", 2)
    assert (type, job, json.loads(event)["id"]) == ("job.failed", "shop", FAILED.id)


def test_a_command_that_fails_is_run_again_and_said_in_the_log(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    program = tmp_path / "fail.py"
    program.write_text(f"import sys\nopen({str(runs)!r}, 'a').write('x')\nsys.exit('no mail today')\n")
    notifier = Notifier([target(f"{sys.executable} '{program}'", None)], first_pause=0.001)
    notifier.tell(FAILED)
    notifier.stop(60.0)
    assert runs.read_text() == "x" * 6
    assert "no mail today" in caplog.text


@pytest.mark.parametrize("text", ["", "no-such-command-here -x", "'open", "https://", "ftp://host/x"])
def test_what_is_neither_a_url_nor_a_command_is_refused(text: str) -> None:
    with pytest.raises(Misuse, match="--notify"):
        target(text, None)


def test_the_secret_comes_from_the_environment_or_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    assert read_secret({}) is None
    assert read_secret({"STROBE_NOTIFY_SECRET": "key"}) == b"key"
    with pytest.raises(Misuse, match="cannot be read"):
        read_secret({"STROBE_NOTIFY_SECRET_FILE": str(file)})
    file.write_text("\n")
    with pytest.raises(Misuse, match="is empty"):
        read_secret({"STROBE_NOTIFY_SECRET_FILE": str(file)})
    file.write_text("key\n")
    assert read_secret({"STROBE_NOTIFY_SECRET_FILE": str(file)}) == b"key"


def test_people_are_told_of_a_violated_invariant_once_until_it_holds_again(tmp_path: Path) -> None:
    observer = JobObserver()
    with receiver() as made, Watchers(Watching(notify=(f"{made.url}/hook",)), "shop") as watchers:
        watchers.watch_job(cast(Any, SimpleNamespace(observer=observer)))
        outcomes = (
            Outcome.VIOLATED,
            Outcome.VIOLATED,
            Outcome.FAILED,
            Outcome.VIOLATED,
            Outcome.HOLDS,
            Outcome.VIOLATED,
        )
        for number, outcome in enumerate(outcomes, 1):
            observer.judged(Verdict("none is made", SnapshotId(number), outcome, count=1, rows=({"total": 7},)))
        observer.judged(Verdict("another", SnapshotId(7), Outcome.VIOLATED))
        events = [json.loads(post.body) for post in made.wait_for(4)]
    assert [(e["type"], e["details"]["invariant"], e["details"]["snapshot"]) for e in events] == [
        ("invariant.violated", "none is made", 1), ("invariant.failed", "none is made", 3),
        ("invariant.violated", "none is made", 6), ("invariant.violated", "another", 7),
    ]  # fmt: skip
    assert events[0]["details"]["rows"] == [{"total": 7}]
    assert [e["details"]["held"] for e in events] == [False] * 4


def test_people_are_told_that_rows_are_held_because_a_query_fails_and_who_has_released_them() -> None:
    observer = JobObserver()
    with receiver() as made, Watchers(Watching(notify=(f"{made.url}/hook",)), "shop") as watchers:
        observer.judged(Verdict("limit", SnapshotId(5), Outcome.FAILED, why="no column 'totl'"), holds_back=True)
        observer.judged(Verdict("limit", SnapshotId(6), Outcome.FAILED, why="no column 'totl'"), holds_back=True)
        watchers.watch_job(cast(Any, SimpleNamespace(observer=observer)))  # what was before it is told, too
        observer.released(Release(SnapshotId(6), "ada@host", "2031-05-17T09:30:05.000Z", 2))
        failed, released = (json.loads(post.body) for post in made.wait_for(2))
    assert (failed["type"], failed["details"]["held"], failed["details"]["why"]) == (
        "invariant.failed", True, "no column 'totl'",
    )  # fmt: skip
    assert failed["message"].endswith("the rows of snapshot 5 and of later ones are held")
    assert (released["type"], released["details"]["by"], released["details"]["snapshot"]) == (
        "rows.released", "ada@host", 6,
    )  # fmt: skip

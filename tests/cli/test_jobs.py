"""Commands that speak to a job: one job runs in a process of its own, as a user would have it, and is asked everything.

The job is examples/ledger.py with a checkpoint every second. The tests run in the order of the file: it ends in the
middle.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from strobe.cli.main import main
from tests.support.waiting import PATIENCE, eventually
from tests.telemetry.samples import Receiver, attribute, receiver, spans_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
STROBE = (sys.executable, "-m", "strobe.cli.main")
STAGES = ["transfers", "postings", "suspects", "balances", "flagged"]
QUERIES = [uid for uid in STAGES if uid != "postings"]  # which is chained: that of balances computes it
NOISE = re.compile(r"WARN|ERROR|Traceback|Exception|SLF4J|log4j|org\.apache|\tat ")


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Running:
    root: Path
    process: subprocess.Popen[bytes]
    canceled: Done | None = field(default=None)

    def ask(self, *args: str) -> Done:
        """`strobe ARGS --home …` in this process."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stopped:
            main([*args, "--home", str(self.root / ".strobe")])
        assert isinstance(stopped.value.code, int)
        return Done(stopped.value.code, out.getvalue(), err.getvalue())

    def said(self) -> str:
        return (self.root / "said").read_text()


@pytest.fixture(scope="module")
def collector() -> Iterator[Receiver]:
    """Takes the job's traces."""
    with receiver() as made:
        yield made


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory, collector: Receiver) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("ledger")
    text = (ROOT / "examples" / "ledger.py").read_text()
    assert text.count("interval=5.0") == 1
    (root / "ledger.py").write_text(text.replace("interval=5.0", "interval=1.0"))
    with (root / "said").open("wb") as said:
        process = subprocess.Popen(
            [*STROBE, "run", "--metrics", "0", "--otel", "ledger.py"], cwd=root, stdout=said, stderr=subprocess.STDOUT,
            env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "200"},
        )  # fmt: skip
    job = Running(root, process)
    try:
        eventually(lambda: "complete in" in job.said(), "its first checkpoint", process=process)
        yield job
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


# ── while it runs ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_list_shows_the_job_and_that_it_runs(ledger: Running) -> None:
    (row,) = ledger.ask("list", "--json").json
    assert (row["job"], row["state"], row["live"], row["pid"]) == ("ledger", "running", True, ledger.process.pid)
    assert row["checkpoints"]
    said = ledger.ask("list")
    assert said.code == 0
    assert re.match(r"ledger +running +newest checkpoint \d", said.out)


def test_status_says_what_an_operator_looks_for(ledger: Running) -> None:
    def told() -> dict[str, Any]:
        status: dict[str, Any] = ledger.ask("status", "ledger", "--json").json
        return {"job": status, **{s["uid"]: s for s in status["stages"]}, **{s["sink"]: s for s in status["sinks"]}}

    seen: dict[str, Any] = {}

    def is_known() -> bool:
        seen.update(told())
        stage = seen["suspects"]
        return bool(
            stage["watermark"] and stage["busy"] and stage["state_store"]["rows"] and seen["transfers"]["batches"]
            and seen["balances/0"]["rows"] and seen["balances/0"]["rows_per_second"]
        )  # fmt: skip

    eventually(is_known, "watermark, busy share, state and rates", process=ledger.process)
    now = seen
    assert 0 < now["suspects"]["busy"] <= 1
    assert now["transfers"]["watermark"] is None, "it has none"
    assert now["transfers"]["backlog"] is None, "a rate source cannot tell"
    assert 0 <= now["job"]["next_checkpoint_s"] <= 1
    assert now["job"]["spark_ui"] == "", "it is off"
    shown = ledger.ask("status", "ledger").out
    for word in ("watermark", "busy", "next checkpoint in", "balances/0", "Delta table"):
        assert word in shown


def test_metrics_of_the_running_job_are_served(ledger: Running) -> None:
    def scrape() -> dict[str, float]:
        (url,) = re.findall(r"^metrics (http://127\.0\.0\.1:\d+/metrics)$", ledger.said(), re.MULTILINE)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=30) as answer:
            text = answer.read().decode()
        return {name: float(value) for name, value in re.findall(r"^(strobe_\S+\{[^}]*\}) (\S+)$", text, re.MULTILINE)}

    counted = (
        'strobe_stage_num_records_in_total{job_name="ledger",stage="transfers"}',
        'strobe_sink_num_records_send_total{job_name="ledger",sink="0",stage="balances"}',
        'strobe_stage_state_rows{job_name="ledger",stage="balances"}',
    )

    def is_known() -> bool:
        found = scrape()
        return any("watermark" in name for name in found) and all(found.get(name, 0) > 0 for name in counted)

    eventually(is_known, "a watermark, and rows counted", process=ledger.process)
    assert scrape()['strobe_job_state{job_name="ledger",state="running"}'] == 1


def test_every_checkpoint_and_batch_is_a_trace_whose_parts_add_up(ledger: Running, collector: Receiver) -> None:
    def spans() -> list[Any]:
        return [span for post in collector.posts for span in spans_of(post)]

    eventually(lambda: any(s.name == "manifest" for s in spans()), "the trace of a checkpoint", process=ledger.process)
    eventually(lambda: any(s.name == "batch" for s in spans()), "the trace of a batch", process=ledger.process)
    found = spans()
    root = next(s for s in found if s.name == "checkpoint")
    below = {s.span_id: s for s in found if s.parent_span_id == root.span_id}
    assert sorted(attribute(s, "strobe.stage") for s in below.values() if s.name == "stage") == sorted(QUERIES)
    name = attribute(root, "strobe.snapshot.slowest")
    slowest = next(s for s in below.values() if attribute(s, "strobe.stage") == name)
    manifest = next(s for s in below.values() if s.name == "manifest")
    phases = [s for s in found if s.parent_span_id == slowest.span_id]
    took = sum(s.end_time_unix_nano - s.start_time_unix_nano for s in (*phases, manifest))
    assert took == pytest.approx(root.end_time_unix_nano - root.start_time_unix_nano, abs=10_000)  # nanoseconds


def test_status_is_watched_until_it_is_interrupted(ledger: Running) -> None:
    as_in_a_terminal = ["env", "--default-signal=INT"]  # however the tests were started
    watching = subprocess.Popen(
        [*as_in_a_terminal, *STROBE, "status", "ledger", "--watch", "--home", str(ledger.root / ".strobe")],
        stdout=subprocess.PIPE,
    )
    assert watching.stdout is not None
    assert b"ledger  running" in watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=PATIENCE)
    assert watching.returncode == 0
    refused = ledger.ask("status", "ledger", "--watch", "--json")
    assert (refused.code, "--watch" in refused.json["error"]["what"]) == (2, True)


def test_status_shows_every_stage_and_the_recent_checkpoints(ledger: Running) -> None:
    status = ledger.ask("status", "ledger", "--json").json
    assert (status["job"], status["state"], status["pid"]) == ("ledger", "running", ledger.process.pid)
    assert sorted(s["uid"] for s in status["stages"]) == sorted(STAGES)
    assert status["completed"] >= 1
    done = next(p for p in status["checkpoints"] if p["status"] == "complete")
    for figure in ("bytes_new", "bytes_total", "rows_in_flight"):
        assert done[figure] >= 0
    phases = ("start_delay", "alignment", "sync", "channels", "async", "prepare", "acknowledge", "manifest")
    assert sum(done[f"{phase}_ms"] for phase in phases) == pytest.approx(done["duration_ms"], abs=0.1)
    assert done["slowest"] in STAGES
    said = ledger.ask("status", "ledger")
    assert said.code == 0
    assert all(re.search(rf"^{uid} +\w+ ", said.out, re.M) for uid in STAGES)
    for heading in ("rows/s", "lag rows", "state rows", "new", "total", "in flight", "start delay", "slowest"):
        assert heading in said.out


def test_checkpoint_takes_one_and_says_which(ledger: Running) -> None:
    done = ledger.ask("checkpoint", "ledger", "--json").json
    assert done["status"] == "complete"
    assert done["bytes_total"] > 0
    said = ledger.ask("checkpoint", "ledger")
    assert said.code == 0
    number = re.match(r"checkpoint (\d+) of ledger is complete: ", said.out)
    assert number is not None
    assert int(number[1]) > done["snapshot"]
    assert f"next: strobe inspect ledger/{number[1]}" in said.out


def test_checkpoints_shows_those_that_are_kept_and_the_recent_ones(ledger: Running) -> None:
    taken = ledger.ask("checkpoint", "ledger", "--json").json["snapshot"]
    known = ledger.ask("checkpoints", "ledger", "--json").json
    assert known["job"] == "ledger"
    assert 1 <= len(known["retained"]) <= 3
    assert max(c["snapshot"] for c in known["retained"]) >= taken
    assert taken in {c["snapshot"] for c in known["recent"] if c["status"] == "complete"}
    said = ledger.ask("checkpoints", "ledger").out
    assert said.startswith("retained\n")
    assert "\nrecent\n" in said


def test_inspect_shows_stages_channels_and_what_is_in_flight(ledger: Running) -> None:
    found = ledger.ask("inspect", "ledger", "--json").json
    assert (found["job"], found["kind"], found["mode"]) == ("ledger", "checkpoint", "unaligned")
    assert sorted(found["stages"]) == sorted(QUERIES)
    assert found["chained"] == {"postings": "balances"}
    assert sorted(found["channels"]) == ["suspects", "transfers"]
    assert sorted(found["channels"]["transfers"]["in_flight"]) == ["balances", "flagged", "suspects"]
    assert len(found["root"]) == 64
    said = ledger.ask("inspect", "ledger")
    assert said.code == 0
    assert re.match(r"checkpoint \d+ of job ledger, unaligned, timeline 1, incarnation 1", said.out)


def test_verify_says_that_every_byte_is_as_written(ledger: Running) -> None:
    found = ledger.ask("verify", "ledger", "--json").json
    assert found["sound"] is True
    assert found["problems"] == []
    assert found["files"] > 0
    said = ledger.ask("verify", "ledger")
    assert said.code == 0
    assert "every byte as written; a consistent cut" in said.out


def test_a_root_that_is_not_the_snapshots_is_found_out(ledger: Running) -> None:
    said = ledger.ask("verify", "ledger", "--root", "0" * 64)
    assert said.code == 1
    assert f"not {'0' * 64}" in said.out


def test_a_second_run_is_refused(ledger: Running) -> None:
    second = subprocess.run(
        [*STROBE, "run", "ledger.py"], cwd=ledger.root, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert second.returncode == 2
    assert f"Job 'ledger' is already running: process {ledger.process.pid} on " in second.stderr
    assert ledger.ask("status", "ledger").code == 0


def test_a_wrong_token_is_refused_with_one_message(ledger: Running) -> None:
    token = ledger.root / ".strobe/jobs/ledger/token"
    assert token.stat().st_mode & 0o077 == 0, "others may read the token"
    right = token.read_text()
    token.write_text("wrong")
    try:
        for command in ("status", "checkpoint", "cancel"):
            done = ledger.ask(command, "ledger")
            assert done.code == 1
            assert "the token is wrong" in done.err
            assert ledger.ask(command, "ledger", "--json").json["error"]["exit_code"] == 1
    finally:
        token.write_text(right)
    assert ledger.ask("status", "ledger").code == 0


def test_a_token_that_is_gone_is_one_message(ledger: Running) -> None:
    token = ledger.root / ".strobe/jobs/ledger/token"
    right = token.read_text()
    token.unlink()
    try:
        done = ledger.ask("checkpoint", "ledger")
    finally:
        token.write_text(right)
        token.chmod(0o600)
    assert done.code == 1
    assert "The token of job 'ledger' cannot be read: No such file or directory." in done.err


def test_an_unknown_checkpoint_is_misuse(ledger: Running) -> None:
    done = ledger.ask("inspect", "ledger/999999")
    assert done.code == 2
    assert "Job 'ledger' has no checkpoint 999999." in done.err


# ── when it is over ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def over(ledger: Running) -> Running:
    ledger.canceled = ledger.ask("cancel", "ledger", "--json")
    ledger.process.wait(PATIENCE)
    return ledger


def test_cancel_returns_when_the_job_is_over_and_the_run_ends_well(over: Running) -> None:
    assert over.canceled is not None
    assert over.canceled.json == {"job": "ledger", "state": "canceled"}
    assert over.process.returncode == 0


def test_the_runs_plain_lines_can_be_followed_and_spark_is_silent(over: Running) -> None:
    lines = over.said().splitlines()
    assert lines[0] == "strobe starts job 'ledger' with 5 stages …"
    assert lines[-1].startswith("job ledger is canceled after ")
    complete = [line for line in lines if re.match(r"checkpoint \d+ complete in \d", line)]
    assert complete
    assert all(word in complete[0] for word in ("start delay", "sync", "manifest", "new", "rows in flight"))
    # A reader that Spark gives up on when the machine is busy is said in one line of ours.
    foreign = [line for line in lines if NOISE.search(line) and "failed to connect back" not in line]
    assert foreign == []


def test_list_and_status_say_that_it_was_canceled(over: Running) -> None:
    (row,) = over.ask("list", "--json").json
    assert (row["state"], row["live"]) == ("canceled", False)
    assert re.match(r"ledger +canceled ", over.ask("list").out)
    assert over.ask("status", "ledger", "--json").json["state"] == "canceled"
    assert "canceled  (not running)" in over.ask("status", "ledger").out


@pytest.mark.parametrize("command", ["checkpoint", "cancel"])
def test_orders_to_a_job_that_is_not_running_are_misuse(over: Running, command: str) -> None:
    done = over.ask(command, "ledger")
    assert done.code == 2
    assert "Job 'ledger' is not running." in done.err
    assert done.out == ""
    assert over.ask(command, "ledger", "--json").json["error"]["what"] == "Job 'ledger' is not running."


def test_its_checkpoints_are_kept_and_sound(over: Running) -> None:
    kept = over.ask("checkpoints", "ledger", "--json").json["retained"]
    assert kept
    for one in kept:
        assert over.ask("verify", f"ledger/{one['snapshot']}").code == 0
    assert over.ask("verify", str(over.root / ".strobe/jobs/ledger/snapshots" / f"chk-{one['snapshot']:06d}")).code == 0


def test_all_money_is_still_there(over: Running) -> None:
    from deltalake import DeltaTable

    balances = DeltaTable(str(over.root / "out/balances")).to_pyarrow_table().column("balance").to_pylist()
    assert balances
    assert sum(balances) == 0


# ── runs of their own ───────────────────────────────────────────────────────────────────────────────────────────────

ENDS = """\
import strobe

pipeline = strobe.Pipeline(
    "ends", checkpoint=strobe.CheckpointConfig(interval=0.5), restart=strobe.RestartPolicy(5, first_pause=0.1)
)

@pipeline.stage("numbers", trigger={"availableNow": True})
def numbers(spark):
    files = spark.readStream.schema("n BIGINT").option("maxFilesPerTrigger", 1)
    return files.json("in")

@pipeline.stage("sums", reads="numbers", output_mode="update", to=strobe.DeltaSink("out", key="even"))
def sums(numbers):
    return numbers.selectExpr("n % 2 = 0 as even", "n").groupBy("even").sum("n").withColumnRenamed("sum(n)", "total")
"""

FAILS = """\
import strobe

pipeline = strobe.Pipeline("fails", restart=strobe.RestartPolicy(1, first_pause=2.0))

def refuse(batch, batch_id):
    raise ValueError("this sink takes nothing, and says so in many words: " + "no " * 40)

@pipeline.stage("ticks", to=strobe.ForeachBatchSink(refuse))
def ticks(spark):
    return spark.readStream.format("rate").load()
"""


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for file in range(3):
        (tmp_path / "in" / f"{file}.json").write_text("".join(f'{{"n": {file * 10 + i}}}\n' for i in range(10)))
    (tmp_path / "ends.py").write_text(ENDS)
    (tmp_path / "fails.py").write_text(FAILS)
    return tmp_path


def run(root: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*STROBE, *args], cwd=root, capture_output=True, text=True, check=False, timeout=PATIENCE)


def test_run_with_json_prints_exactly_one_value_whether_the_job_ends_or_fails(numbers: Path) -> None:
    done = run(numbers, "run", "ends.py", "--json")
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)
    assert (status["job"], status["state"]) == ("ends", "finished")
    assert status["completed"] >= 1
    failed = run(numbers, "run", "fails.py", "--json")
    assert failed.returncode == 1
    error = json.loads(failed.stdout)["error"]
    assert error["what"].startswith("Job 'fails' failed: stage 'ticks' failed for good: ValueError: this sink takes")
    assert "intact" in error["untouched"]
    assert NOISE.search(failed.stderr.replace("ValueError", "")) is None


def test_on_a_terminal_there_is_a_table_that_fits_it_and_nothing_of_sparks(numbers: Path) -> None:
    screen = on_a_terminal([*STROBE, "run", "fails.py"], numbers, columns=80)
    assert screen.code == 1
    assert re.search(r"stage +state +batch +took +busy +rows/s +lag rows +state rows", screen.text)
    assert re.search(r"^ticks +(running|restarting) ", screen.text, re.M)
    assert "ticks: ValueError: this sink takes nothing, and says so in many words" in screen.text.replace("\n", " ")
    assert re.search(r"error: Job 'fails' failed: stage 'ticks' failed for good: ValueError", screen.text)
    drawn = [line for line in screen.text.splitlines() if re.match(r"(ticks|stage|\d+) +\w", line)]
    assert max(map(len, drawn)) <= 80
    assert NOISE.search(screen.text.replace("ValueError", "")) is None


@dataclass(frozen=True)
class Screen:
    code: int
    text: str


def on_a_terminal(command: list[str], root: Path, *, columns: int) -> Screen:
    """Everything that was ever drawn, without colours and movements."""
    ours, theirs = os.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "40"}
    env = {k: v for k, v in env.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(command, cwd=root, env=env, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True)
    os.close(theirs)
    alarm = threading.Timer(PATIENCE, process.kill)
    alarm.start()
    drawn = b""
    try:
        with contextlib.suppress(OSError):  # what a terminal says when its other end is closed
            while chunk := os.read(ours, 65536):
                drawn += chunk
        code = process.wait()
    finally:
        alarm.cancel()
        os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\r", "", drawn.decode(errors="replace"))
    return Screen(code, text)

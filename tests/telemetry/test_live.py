"""`strobe live up` with `--metrics`, `--otel` and `--notify`: systems of real processes, watched while they run."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from strobe.cli.watching import Watchers, Watching
from strobe.hosts.live.coordinator.outcomes import CheckMade, InvariantJudged, NodeDied, SnapshotEnded
from strobe.model.ids import NodeId, SnapshotId
from strobe.model.invariants import Outcome, Verdict
from strobe.model.kind import Kind
from strobe.store.manifest import NodeRecord, Timing
from tests.support.live.commandline import Terminal, up
from tests.telemetry.samples import AT, Receiver, attribute, receiver, spans_of

EXAMPLES = Path(__file__).parents[2] / "examples" / "live"
PATIENCE = 60.0  # seconds; only a test that fails waits for so long


def test_a_live_system_serves_its_metrics(tmp_path: Path) -> None:
    for name in ("bank.py", "bank.toml"):
        shutil.copy(EXAMPLES / name, tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "strobe.cli.main", "live", "up", "bank.toml", "--metrics", "0", "--interval", "0.2"],
        cwd=tmp_path, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said = re.fullmatch(r"metrics (http://127\.0\.0\.1:\d+/metrics)\n", process.stdout.readline())
        assert said is not None
        deadline, found = time.monotonic() + PATIENCE, ""
        while 'strobe_live_last_completed_checkpoint_id{system="bank"}' not in found:
            assert time.monotonic() < deadline, found
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(said[1], timeout=30) as answer:
                found = answer.read().decode()
            time.sleep(0.05)
        assert 'strobe_live_running{system="bank"} 1.0' in found
        assert len(re.findall(r"^strobe_live_node_running\{.*\} 1\.0$", found, re.MULTILINE)) == 3
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


RELAY = """
from dataclasses import dataclass
from pathlib import Path

from strobe.hosts.live import Process


@dataclass
class Relay(Process):
    seen: int = 0
    refuses: str = ""  # a file; while it is there, this node's state cannot be recorded

    def on_start(self) -> None:
        if self.name == "first":
            self.after(0.01, "go")

    def on_timer(self, name: str) -> None:
        self.send(self.peers[0], self.seen)

    def on_message(self, sender: str, message: int) -> None:
        self.seen = message + 1
        self.after(0.005, "go")

    def snapshot(self) -> object:
        if self.refuses and Path(self.refuses).exists():
            raise ValueError("the ledger is open")
        return super().snapshot()


def moved(cut):
    return any(state["seen"] > 20 for state in cut.states.values())
"""


def relay(directory: Path) -> tuple[Path, Path]:
    """Two processes that send a number round and round; the topology's file, and the one that makes a node refuse."""
    directory.mkdir()
    refuses = directory / "refuses"
    (directory / "relay.py").write_text(RELAY)
    (directory / "relay.toml").write_text(
        f"""
        name = "relay"
        channels = [["first", "second"], ["second", "first"]]
        checks = ["relay.py:moved"]
        [nodes.first]
        class = "relay.py:Relay"
        [nodes.second]
        class = "relay.py:Relay"
        params = {{ refuses = "{refuses}" }}
        [checkpoints]
        interval = 0.2
        tolerable_failures = 1000
        [invariants]
        "nothing is seen" = "select seen from state.second where seen > 5"
        """
    )
    return directory / "relay.toml", refuses


def told(made: Receiver, type: str) -> dict[str, Any]:
    """The first message of that type; waits until it has come."""

    def find() -> dict[str, Any] | None:
        hooks = (json.loads(post.body) for post in made.posts if post.path == "/hook")
        return next((hook for hook in hooks if hook["type"] == type), None)

    with made.arrived:
        assert made.arrived.wait_for(find, PATIENCE), f"no {type}"
    return find() or {}


def traced(made: Receiver, code: int) -> tuple[Any, list[Any]]:
    """The first whole trace of a snapshot that ended so, and all of its spans; waits until it has come."""

    def find() -> tuple[Any, list[Any]] | None:
        spans = [span for post in made.posts if post.path == "/v1/traces" for span in spans_of(post)]
        for root in (s for s in spans if not s.parent_span_id and s.status.code == code):
            return root, [s for s in spans if s.trace_id == root.trace_id]
        return None

    with made.arrived:
        assert made.arrived.wait_for(find, PATIENCE)
    found = find()
    assert found is not None
    return found


def test_a_live_system_sends_traces_and_tells_of_what_goes_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology, refuses = relay(tmp_path / "elsewhere")
    strobe = Terminal(tmp_path)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    monkeypatch.setenv("STROBE_NOTIFY_SECRET", "key")
    with receiver() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
        with up(strobe, str(topology), "--otel", "--notify", f"{made.url}/hook"):
            violated, found = told(made, "invariant.violated"), told(made, "check.found")
            refuses.touch()
            failed = told(made, "checkpoint.failed")
            refuses.unlink()
            assert strobe("live", "kill", "first").code == 0
            died = told(made, "node.died")
            root, spans = traced(made, 0)
            broken, _ = traced(made, 2)
    assert (violated["job"], violated["details"]["invariant"]) == ("relay", "nothing is seen")
    assert found["details"]["check"].endswith("moved")
    assert "the ledger is open" in failed["message"]
    assert (died["details"]["node"], died["message"]) == ("first", "node first: its process was ended by SIGKILL")
    signed = [post for post in made.posts if post.path == "/hook"]
    assert all(post.headers["X-Strobe-Signature"].startswith("sha256=") for post in signed)
    assert (root.name, attribute(root, "strobe.system")) == ("checkpoint", "relay")
    nodes = {attribute(s, "strobe.node"): s for s in spans if s.name == "node"}
    assert set(nodes) == {"first", "second"}
    for node in nodes.values():
        phases = [s for s in spans if s.parent_span_id == node.span_id]
        assert {"start_delay", "sync"} <= {s.name for s in phases}
        assert sum(length(s) for s in phases) == pytest.approx(length(node), abs=1000)
    assert [s.name for s in spans if s.parent_span_id == root.span_id].count("manifest") == 1
    assert "the ledger is open" in broken.status.message


def length(span: Any) -> int:
    """Nanoseconds."""
    return int(span.end_time_unix_nano - span.start_time_unix_nano)


def test_a_system_that_does_not_start_says_so_to_those_who_want_to_know(tmp_path: Path) -> None:
    topology, _ = relay(tmp_path / "elsewhere")
    topology.write_text(topology.read_text().replace("relay.py:Relay", "relay.py:Nobody"))
    with receiver() as made:
        done = Terminal(tmp_path)("live", "up", str(topology), "--notify", f"{made.url}/hook")
        assert (done.code, told(made, "system.failed")["job"]) == (2, "relay")


def test_a_wrong_target_or_setting_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topology, _ = relay(tmp_path / "elsewhere")
    strobe = Terminal(tmp_path)
    refused = strobe("live", "up", str(topology), "--notify", "no-such-command-here")
    assert (refused.code, "neither a URL nor a command" in refused.err) == (2, True)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    refused = strobe("live", "up", str(topology), "--otel")
    assert (refused.code, "http/protobuf only" in refused.err) == (2, True)
    assert not strobe.home.exists()


def test_what_stays_so_is_told_once() -> None:
    part = {NodeId("a"): NodeRecord(sync_ms=2, timing=Timing(1))}
    given_up = SnapshotEnded(SnapshotId(3), Kind.SAVEPOINT, AT, 12.0, part, reason="a handler failed")
    with receiver() as made, Watchers(Watching(notify=(made.url,)), "relay", live=True) as watchers:
        for found in (True, None, True, False, True):
            watchers.hear_system(CheckMade("deadlock", 1, found, "a waits for b, b for a", ("a", "b")))
        for outcome in (Outcome.VIOLATED, Outcome.VIOLATED, Outcome.HOLDS):
            watchers.hear_system(InvariantJudged(Verdict("solvent", SnapshotId(1), outcome)))
        watchers.hear_system(given_up)
        watchers.hear_system(NodeDied(NodeId("a"), "gone", 2))
        events = [json.loads(post.body) for post in made.wait_for(5)]
    assert [event["type"] for event in events] == [
        "check.found", "check.found", "invariant.violated", "savepoint.failed", "node.died",
    ]  # fmt: skip
    assert events[0]["details"] == {"check": "deadlock", "snapshot": 1, "lines": ["a", "b"]}
    assert (events[3]["details"]["snapshot"], events[3]["message"]) == (3, "a handler failed")

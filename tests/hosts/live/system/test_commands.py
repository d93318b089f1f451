"""`strobe live` from other terminals: what a user types, and what is said when it is wrong."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from strobe.hosts.live.snapshot.reading import read_cut
from strobe.hosts.live.system.commands import ask
from strobe.model.errors import Failed
from strobe.model.ids import NodeId
from tests.support.live.commandline import EXAMPLES, Terminal, up
from tests.support.processes import alive
from tests.support.waiting import eventually

BANK = str(EXAMPLES / "bank.toml")


@pytest.fixture
def strobe(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path)


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """One bank for all tests that only ask it something; no snapshots but those they ask for."""
    strobe = Terminal(tmp_path_factory.mktemp("bank"))
    with up(strobe, BANK, "--interval", "0"):
        yield strobe


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


# ── a running system ────────────────────────────────────────────────────────────────────────────────────────────────


def test_status_shows_nodes_at_work(bank: Terminal) -> None:
    eventually(lambda: all(node["sent_per_second"] > 0 for node in bank.ask("live", "status")["nodes"]), "all send")
    status = bank.ask("live", "status", "bank")
    assert [node["node"] for node in status["nodes"]] == ["athens", "berlin", "cairo"]
    assert {node["state"] for node in status["nodes"]} == {"running"}
    shown = bank("live", "status").out
    assert "sent/s" in shown
    assert "athens" in shown


def test_a_snapshot_is_taken_verified_and_looked_into(bank: Terminal) -> None:
    taken = bank.ask("live", "snapshot", "--from", "berlin")
    name = f"bank/{taken['snapshot']}"
    assert Path(taken["where"], "manifest.json").is_file()
    assert bank("verify", name).code == 0
    states = bank.ask("inspect", name)["states"]
    assert set(states) == {"athens", "berlin", "cairo"}
    assert '"balance"' in bank("inspect", name).out


def test_a_killed_node_comes_back_and_so_does_a_restored_system(bank: Terminal) -> None:
    taken = bank.ask("live", "snapshot")["snapshot"]
    before = bank.ask("live", "status")["incarnation"]
    bank.ask("live", "kill", "athens")

    def back() -> bool:
        status = bank.ask("live", "status")
        return bool(status["incarnation"] > before and status["state"] == "running")

    eventually(back, "the system is back")
    done = bank.ask("live", "restore", "bank", str(taken))
    assert done["snapshot"] == taken
    assert done["incarnation"] > before + 1


def test_a_break_waits_until_the_condition_holds_and_shows_everybody(bank: Terminal) -> None:
    hit = bank.ask("live", "break", "berlin.transfers >= 1")
    assert hit["node"] == "berlin"
    assert hit["states"]["berlin"]["transfers"] >= 1
    assert set(hit["states"]) == {"athens", "berlin", "cairo"}
    assert bank("verify", hit["where"]).code == 0


def test_the_running_system_goes_back_to_a_savepoint_by_number_and_by_directory(bank: Terminal) -> None:
    hit = bank.ask("live", "break", "node.transfers >= 3")
    for name in (str(hit["snapshot"]), hit["where"], os.path.relpath(hit["where"], bank.directory)):
        before = bank.ask("live", "status")["incarnation"]
        assert bank.ask("live", "restore", "bank", name)["incarnation"] > before
    assert hit["where"] in bank("live", "restore", "bank", hit["where"]).out


def test_a_savepoint_that_cannot_be_written_is_refused_before_it_starts(bank: Terminal) -> None:
    done = bank("live", "snapshot", "--to", "/proc/nowhere/there", "--json")
    assert done.code == 1
    assert "cannot be written to /proc/nowhere/there" in done.json["error"]["what"]
    there = bank.directory / "there"
    bank.ask("live", "snapshot", "--to", str(there))
    before = sorted(there.rglob("*"))
    assert bank("live", "snapshot", "--to", str(there)).code == 2
    assert sorted(there.rglob("*")) == before
    assert bank("verify", str(there)).code == 0


def test_list_and_status_know_it_and_commands_for_pipelines_refuse_it(bank: Terminal) -> None:
    (job,) = bank.ask("list")
    assert (job["job"], job["kind"], job["state"], job["live"]) == ("bank", "live", "running", True)
    assert "strobe live status bank" in bank("status", "bank").out
    refused = bank("checkpoint", "bank")
    assert refused.code == 2
    assert "strobe live snapshot bank" in refused.err


def test_only_the_owner_can_read_the_token_and_a_wrong_one_is_refused(bank: Terminal) -> None:
    token = bank.home / "jobs" / "bank" / "token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    right = token.read_text()
    try:
        token.write_text("x" * len(right))
        with pytest.raises(Failed, match="the token is wrong"):
            ask(bank.home, "bank", "POST", "/v1/down")
        assert bank("live", "status").code == 1
    finally:
        token.write_text(right)
    assert bank.ask("live", "status")["state"] == "running"


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (("status", "nope"), "There is no system 'nope'"),
        (("kill", "nobody"), "There is no node 'nobody'"),
        (("snapshot", "--from", "nobody"), "There is no node 'nobody'"),
        (("restore", "bank", "999"), "has no snapshot 999"),
        (("restore", "bank", "latest"), "There is no snapshot 'latest'"),
        (("snapshot", "--to", "."), "it is not an empty directory"),
        (("snapshot", "--to", BANK), "it is not an empty directory"),
        (("break", "node.balance >"), "is not a condition"),
        (("break", "node.balanse > 1"), "has no field 'balanse'"),
        (("journal", "bank", "out.journal"), "its journal is still being written"),
        (("up", BANK), "runs already"),
    ],
)
def test_a_wrong_request_is_refused_in_one_sentence_and_the_system_runs_on(
    bank: Terminal, args: tuple[str, ...], what: str
) -> None:
    done = bank("live", *args, "--json")
    assert done.code == 2, done.out
    assert what in done.json["error"]["what"]
    assert bank.ask("live", "status")["state"] == "running"


# ── start and end ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_interrupt_takes_a_last_snapshot_and_ends_every_process(strobe: Terminal) -> None:
    process = subprocess.Popen(
        strobe.command("live", "up", BANK), cwd=strobe.directory, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert "bank runs: 3 nodes" in process.stdout.readline()
    pids = [node["pid"] for node in strobe.ask("live", "status")["nodes"]]
    process.send_signal(signal.SIGINT)
    said = process.stdout.read()
    assert process.wait(30) == 0
    assert "it was interrupted; snapshot" in said
    assert not any(map(alive, pids))
    assert strobe.ask("live", "status", "bank")["state"] == "stopped"
    assert strobe("live", "snapshot", "bank").code == 2


def test_nodes_end_when_whoever_started_them_is_killed(strobe: Terminal) -> None:
    with up(strobe, BANK, "--interval", "0") as started:
        pids = [node["pid"] for node in strobe.ask("live", "status")["nodes"]]
        strobe.ask("live", "snapshot")
        os.kill(started["pid"], signal.SIGKILL)
        eventually(lambda: not any(map(alive, pids)), "all nodes have ended")
        assert strobe.ask("live", "status", "bank")["state"] == "dead"


def test_down_keeps_the_state_and_up_goes_on_from_it_also_elsewhere(strobe: Terminal) -> None:
    savepoint = str(strobe.directory / "there")
    with up(strobe, BANK, "--interval", "0"):
        strobe.ask("live", "break", "cairo.transfers >= 20")
        strobe.ask("live", "snapshot", "--to", savepoint)
        kept = strobe.ask("live", "down")["snapshot"]
    before = read_cut(f"bank/{kept}", strobe.home).states[NodeId("cairo")]["transfers"]
    strobe.ask("live", "up", BANK, "--for", "0.5")
    assert read_cut("bank", strobe.home).states[NodeId("cairo")]["transfers"] > before
    strobe.ask("live", "up", BANK, "--for", "0.5", "--restore", savepoint, "--home", "elsewhere")
    assert read_cut("bank", strobe.directory / "elsewhere").states[NodeId("cairo")]["transfers"] > 20


def test_a_journal_of_a_real_run_with_a_kill_verifies_and_is_drawn(strobe: Terminal) -> None:
    with up(strobe, BANK, "--interval", "0", "--journal"):
        strobe.ask("live", "snapshot")
        before = strobe.ask("live", "status")["incarnation"]
        strobe.ask("live", "kill", "cairo")
        eventually(lambda: strobe.ask("live", "status")["incarnation"] > before, "a new incarnation")
        second = strobe.ask("live", "snapshot")["snapshot"]
        alone = strobe("debug", f"bank/{second}", "--print")
        assert (
            "A snapshot without a journal: no steps before or after it are known. Its journal is still being written"
            in alone.out
        )
        strobe.ask("live", "down")
    cut = read_cut(f"bank/{second}", strobe.home)
    for options, steps in (((), False), (("--topology", BANK), True)):  # the second in its journal, after the restart
        at = strobe.outside("debug", f"bank/{second}", *options, "--json").json
        assert at["cut"]["states"] == cut.states
        assert (at["steps"] > 0, str(second) in at["snapshots"]) == (steps, steps)
    strobe.ask("live", "journal", "bank", "bank.journal", "--svg", "bank.svg")
    verdict = strobe.ask("sim", "verify", "bank.journal")
    assert verdict["violations"] == []
    assert len(verdict["snapshots"]) >= 3
    assert "<svg" in (strobe.directory / "bank.svg").read_text()
    refused = strobe("live", "up", str(EXAMPLES / "ring.toml"), "--for", "1")
    assert refused.code == 0
    assert strobe("live", "journal", "ring", "ring.journal").code == 2
    assert "Its system kept no journal" in strobe("debug", "ring", "--print").out


def test_a_node_started_by_hand_is_connected_to_and_waited_for_when_it_dies(strobe: Terminal) -> None:
    port = free_port()
    (strobe.directory / "cluster.key").write_text(secrets.token_hex(32))
    (strobe.directory / "two.toml").write_text(
        f'channels = "complete"\nkey_file = "cluster.key"\n[nodes.a]\nclass = "{EXAMPLES}/bank.py:Branch"\n'
        f'[nodes.b]\nclass = "{EXAMPLES}/bank.py:Branch"\naddress = "127.0.0.1:{port}"\nremote = true\n'
    )

    def node() -> subprocess.Popen[str]:
        command = strobe.command("live", "node", "two.toml", "b")
        process = subprocess.Popen(command, cwd=strobe.directory, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert f"listens on 127.0.0.1:{port}" in process.stdout.readline()
        return process

    first = node()
    second = None
    try:
        with up(strobe, "two.toml", "--interval", "0"):
            assert strobe("live", "kill", "b").code == 2
            taken = strobe.ask("live", "snapshot")["snapshot"]
            before = strobe.ask("live", "status")["incarnation"]
            first.kill()
            first.wait()
            second = node()
            eventually(lambda: strobe.ask("live", "status")["incarnation"] > before, "a new incarnation")
            assert strobe.ask("live", "snapshot")["snapshot"] > taken
            strobe.ask("live", "down")
        assert second.wait(30) == 0
    finally:
        for process in (first, second):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


# ── what cannot be started ──────────────────────────────────────────────────────────────────────────────────────────

NODE = f'class = "{EXAMPLES}/bank.py:Branch"\n'


@pytest.mark.parametrize(
    ("text", "code", "what"),
    [
        (f'channels = [["a", "z"]]\n[nodes.a]\n{NODE}', 2, "z"),
        (f'[nodes.a]\n{NODE}[checkpoints]\nintervall = 1\n', 2, "[checkpoints] is not legal"),
        (f'[nodes.a]\n{NODE}[checkpoints]\nretained = "x"\n', 2, "retained = 'x'"),
        (f'[nodes.a]\n{NODE}[tls]\nkey = "x"\n', 2, "[tls] is not legal"),
        (f'[nodes.a]\n{NODE}remote = true\n', 2, "has no port"),
        (f'[nodes.a]\n{NODE}address = "127.0.0.1:1"\nremote = true\n', 2, "no key"),
        ('[nodes.a]\nclass = "nowhere.py:A"\n', 2, "cannot be loaded"),
        (f'[nodes.a]\n{NODE}params = {{ cash = 1 }}\n', 1, "cash"),
        ("name = ", 2, "is not TOML"),
    ],
    ids=["node", "setting", "number", "half of tls", "no port", "no key", "no class", "params", "no toml"],
)  # fmt: skip
def test_a_wrong_topology_is_refused_in_one_sentence(strobe: Terminal, text: str, code: int, what: str) -> None:
    (strobe.directory / "t.toml").write_text(text)
    done = strobe("live", "up", "t.toml", "--json")
    assert done.code == code, done.out
    assert what in done.json["error"]["what"]


def test_an_unreachable_node_is_named(strobe: Terminal) -> None:
    (strobe.directory / "cluster.key").write_text(secrets.token_hex(32))
    away = f'{NODE}address = "127.0.0.1:{free_port()}"\nremote = true\n'
    (strobe.directory / "t.toml").write_text(f'key_file = "cluster.key"\n[nodes.a]\n{NODE}[nodes.b]\n{away}')
    done = strobe("live", "up", "t.toml", "--wait", "1.5", "--json")
    assert done.code == 1
    assert "Node b at 127.0.0.1:" in done.json["error"]["what"]
    assert "nobody listens there" in done.json["error"]["what"]
    assert strobe.ask("list")[0]["live"] is False


def test_a_port_in_use_is_named(strobe: Terminal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (strobe.directory / "t.toml").write_text(f'[nodes.a]\n{NODE}address = "127.0.0.1:{port}"\n')
        done = strobe("live", "up", "t.toml", "--json")
    assert done.code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.json["error"]["what"]


def test_a_snapshot_of_another_topology_is_refused_and_kept(strobe: Terminal) -> None:
    strobe.ask("live", "up", BANK, "--for", "0.2")
    done = strobe("live", "up", str(EXAMPLES / "ring.toml"), "--restore", "bank", "--json")
    assert done.code == 2
    assert "does not fit ring: node athens is not in the topology" in done.json["error"]["what"]
    assert strobe("verify", "bank").code == 0


def test_a_state_that_cannot_be_written_names_the_field_and_the_system_runs_on(strobe: Terminal) -> None:
    (strobe.directory / "bad.py").write_text(
        "from dataclasses import dataclass\nfrom typing import Any\n"
        "from strobe.hosts.live import NodeSpec, Process, Topology\n"
        "@dataclass\nclass Bad(Process):\n    handle: Any = None\n"
        "    def on_start(self):\n        self.handle = object()\n"
        'topology = Topology("bad", (NodeSpec("a", Bad),))\n'
    )
    with up(strobe, "bad.py", "--interval", "0"):
        done = strobe("live", "snapshot", "--json")
        assert done.code == 1
        assert "handle" in done.json["error"]["what"]
        assert strobe.ask("live", "status")["state"] == "running"


def test_a_topology_in_python_is_one_of_those_that_the_file_declares(strobe: Terminal) -> None:
    (strobe.directory / "two.py").write_text(
        "from dataclasses import dataclass\nfrom strobe.hosts.live import NodeSpec, Process, Topology\n"
        "@dataclass\nclass Idle(Process):\n    n: int = 0\n"
        'one = Topology("one", (NodeSpec("a", Idle),))\nother = Topology("other", (NodeSpec("a", Idle),))\n'
    )
    assert strobe.ask("live", "up", "two.py:other", "--for", "0.1")["system"] == "other"
    for target in ("two.py", "two.py:third", "two.txt", "none.py"):
        assert strobe("live", "up", target, "--json").code == 2, target


def test_answers_are_one_json_value_errors_included(strobe: Terminal) -> None:
    done = strobe("live", "status", "--json")
    assert done.code == 2
    assert json.loads(done.out)["error"]["what"].startswith("No live systems run")

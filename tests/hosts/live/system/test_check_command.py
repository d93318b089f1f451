"""`strobe live check`, checks in the topology, and what the status says of them."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.live.commandline import EXAMPLES, Terminal, up

RULES = """
from strobe.hosts.live import tokens

def one_token(cut):
    return tokens(cut, held=lambda state: state["token"] is not None)

def turned(cut):
    return sum(state["turns"] for state in cut.states.values()) > 20

def broken(cut):
    return cut.states["nobody"]["token"]
"""


def ring(tmp_path: Path, checks: str) -> Path:
    """The ring, in a directory of its own, with these checks."""
    where = tmp_path / "elsewhere"
    where.mkdir()
    shutil.copy(EXAMPLES / "ring.py", where)
    (where / "rules.py").write_text(RULES)
    (where / "ring.toml").write_text(f"checks = {checks}\n" + (EXAMPLES / "ring.toml").read_text())
    return where / "ring.toml"


def test_a_system_that_runs_is_asked_and_a_script_can_tell_the_answers_apart(tmp_path: Path) -> None:
    strobe = Terminal(tmp_path)
    file = ring(tmp_path, '["rules.py:one_token", "rules.py:turned", "rules.py:broken"]')
    rules = file.parent / "rules.py"
    with up(strobe, str(file), "--interval", "0.2"):
        # Found: 1. Waited for: as many snapshots as it takes.
        turned = strobe("live", "check", "ring", f"{rules}:turned", "--every", "0.05", "--json")
        assert (turned.code, turned.json["found"], turned.json["system"]) == (1, True, "ring")
        assert strobe("live", "check", "ring", f"{rules}:turned", "--expect", "yes").code == 0
        # Not found: 0, also after a few snapshots.
        lost = strobe("live", "check", "ring", f"{rules}:one_token", "--every", "0.01", "--times", "3")
        assert lost.code == 0
        assert lost.out.count("does not hold") == 3
        # Not decided: 2, and one clear sentence.
        broken = strobe("live", "check", "ring", f"{rules}:broken")
        assert (broken.code, broken.out) == (2, "")
        assert "broken failed: KeyError: 'nobody'." in broken.err
        assert "Traceback" not in broken.err
        silent = strobe("live", "check", "ring", "deadlock")
        assert silent.code == 2
        assert "No class in this system has waits_for()" in silent.err
        running = strobe("live", "check", "ring", "termination")
        assert (running.code, "not terminated" in running.out) == (0, True)
        # What the topology asks for is in the status, and was told once.
        while True:
            checks = {c["check"].rpartition(":")[2]: c for c in strobe.ask("live", "status", "ring")["checks"]}
            if all(check["snapshot"] >= turned.json["snapshot"] for check in checks.values()):
                break
        assert (checks["one_token"]["found"], checks["turned"]["found"], checks["broken"]["found"]) == (
            False,
            True,
            None,
        )
        shown = strobe("live", "status", "ring").out
        assert "check rules.py:one_token, snapshot" in shown
        assert "broken failed: KeyError: 'nobody'." in shown
    log = (strobe.home / "jobs" / "ring" / "logs" / "driver.log").read_text()
    assert log.count("rules.py:turned, snapshot") == 1
    assert log.count("rules.py:broken cannot be made") == 1


def test_a_snapshot_that_there_is_is_asked_wherever_it_is(tmp_path: Path) -> None:
    strobe = Terminal(tmp_path)
    file = ring(tmp_path, "[]")
    done = strobe.ask("live", "up", str(file), "--for", "0.5")
    last = done["snapshot"]
    # The system is down: its last snapshot, or one by number, and nothing new will come.
    assert strobe("live", "check", "ring", "termination").code == 0
    assert strobe("live", "check", f"ring/{last}", "termination", "--json").json["snapshot"] == last
    waiting = strobe("live", "check", "ring", "termination", "--every", "1")
    assert waiting.code == 2
    assert "is not running" in waiting.err
    # A copy of the home in which nobody has brought the system up: its directory, and the topology by name.
    place = strobe.home / "jobs" / "ring" / "snapshots" / f"chk-{last:06}"
    other = tmp_path / "other"
    other.mkdir()
    elsewhere = Terminal(other)
    assert elsewhere("live", "check", str(place), f"{file.parent}/rules.py:one_token").code == 0
    unknown = elsewhere("live", "check", str(place), "termination")
    assert (unknown.code, "--topology FILE" in unknown.err) == (2, True)
    assert elsewhere("live", "check", str(place), "termination", "--topology", str(file)).code == 0
    misfit = elsewhere("live", "check", str(place), "deadlock", "--topology", str(EXAMPLES / "dining.toml"))
    assert (misfit.code, "does not fit" in misfit.err) == (2, True)
    nonsense = elsewhere("live", "check", str(place), "deadlok")
    assert (nonsense.code, "Did you mean 'deadlock'?" in nonsense.err) == (2, True)


def test_a_topology_with_checks_that_cannot_be_meant_does_not_start(tmp_path: Path) -> None:
    strobe = Terminal(tmp_path)
    file = ring(tmp_path, '["deadlok"]')
    assert "There is no check called 'deadlok'" in strobe("live", "up", str(file)).err
    file.write_text(file.read_text().replace("deadlok", "rules.py:none"))
    assert "has no function 'none'" in strobe("live", "up", str(file)).err
    file.write_text(file.read_text().replace('["rules.py:none"]', "true"))
    refused = strobe("live", "up", str(file))
    assert (refused.code, "checks are not legal" in refused.err) == (2, True)
    assert not (strobe.home / "jobs" / "ring" / "runtime.json").exists()

"""What only its owner may read, and what its owner may open to a group."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from strobe.store.layout import JobLayout
from strobe.store.places import settle
from strobe.store.private import make_private, open_private
from strobe.store.scratch import Scratch


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_new_directory_is_for_its_owner_alone(tmp_path: Path) -> None:
    assert not make_private(tmp_path / "jobs" / "ledger")
    assert mode(tmp_path / "jobs" / "ledger") == 0o700
    assert not make_private(tmp_path / "jobs" / "ledger")


def test_one_that_everybody_may_enter_is_closed_and_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    assert make_private(tmp_path / "ledger")
    assert mode(tmp_path / "ledger") == 0o700


def test_one_that_its_owner_has_opened_to_a_group_stays_open_to_it(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger").chmod(0o750)
    assert not make_private(tmp_path / "ledger")
    assert mode(tmp_path / "ledger") == 0o750


def test_a_log_is_for_its_owner_alone_also_one_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "old.log").write_text("old\n")
    for name in ("old.log", "new.log"):
        with open(tmp_path / name, "ab", opener=open_private) as log:
            log.write(b"line\n")
        assert mode(tmp_path / name) == 0o600
    assert (tmp_path / "old.log").read_text() == "old\nline\n"


def test_checkpoints_in_another_directory_are_as_private_as_those_at_home(tmp_path: Path) -> None:
    (tmp_path / "home" / JobLayout("ledger").root).mkdir(parents=True)
    settle(tmp_path / "home", "ledger", str(tmp_path / "elsewhere"))
    assert mode(tmp_path / "elsewhere" / JobLayout("ledger").root) == 0o700


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that other users can reach. Those of pytest they cannot."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


COMMANDS = (
    "list", "status ledger", "logs ledger", "checkpoints ledger", "inspect ledger", "verify ledger/1",
    "dispose ledger/1", "cancel ledger",
)  # fmt: skip
AS_ANOTHER = """
import os, sys
from strobe.cli import dispose, jobs, logs, snapshots, status
from strobe.cli.main import main
import strobe.hosts.live.system.commands
for command in sys.argv[2:]:
    if os.fork() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        os.chdir("/")
        os.dup2(1, 2)
        main([*command.split(), "--home", sys.argv[1]])
    print(f"exit {os.waitstatus_to_exitcode(os.wait()[1])}", flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_is_told_whose_it_is(open_path: Path) -> None:
    job = open_path / "h" / JobLayout("ledger").root
    make_private(job)
    (job / "lock").touch()
    (job / "runtime.json").write_text('{"state": "running", "pid": 1, "port": 1}')
    done = subprocess.run(
        [sys.executable, "-c", AS_ANOTHER, open_path / "h", *COMMANDS], capture_output=True, text=True, check=True
    )
    *answers, _ = re.split(r"(?<=exit )\d+\n", done.stdout)
    assert len(answers) == len(COMMANDS)
    for command, answer in zip(COMMANDS, answers, strict=True):
        assert "Traceback" not in answer, (command, answer)
        told = ("unknown",) if command == "list" else ("another user", "Permission denied")
        assert any(words in answer for words in told), (command, answer)
    assert re.findall(r"exit (\d+)", done.stdout) == ["0", *["1"] * (len(COMMANDS) - 1)]


def test_files_under_way_are_for_their_owner_alone(tmp_path: Path) -> None:
    assert mode(Scratch(tmp_path).path) == 0o700

"""A lease keeps a snapshot from being retired for as long as its reader lives, and no longer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from strobe.model.ids import SnapshotId
from strobe.store.layout import JobLayout
from strobe.store.leases import retiring, take_lease

READER = """
import sys
from pathlib import Path
from strobe.store.leases import take_lease
lease = take_lease(Path(sys.argv[1]), "ledger", 7)
print("taken", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / JobLayout("ledger").root).mkdir(parents=True)
    return tmp_path


def leased(home: Path) -> set[int] | None:
    with retiring(home, "ledger") as held:
        return None if held is None else set(map(int, held))


def test_a_snapshot_is_leased_until_it_is_let_go(home: Path) -> None:
    assert leased(home) == set()
    one, two = (take_lease(home, "ledger", SnapshotId(12)) for _ in range(2))
    assert one is not None
    assert two is not None
    assert leased(home) == {12}
    one.release()
    assert leased(home) == {12}
    two.release()
    two.release()
    assert leased(home) == set()
    assert not (home / JobLayout("ledger").leases).exists()


def test_a_reader_that_is_killed_lets_go(home: Path) -> None:
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == "taken\n"
    assert leased(home) == {7}
    reader.send_signal(signal.SIGKILL)
    reader.wait()
    assert leased(home) == set()


def test_nothing_is_retired_while_a_reader_comes_in(home: Path) -> None:
    import fcntl

    lease = take_lease(home, "ledger", SnapshotId(1))
    assert lease is not None
    door = os.open(home / JobLayout("ledger").root, os.O_RDONLY)
    try:
        fcntl.flock(door, fcntl.LOCK_SH)
        assert leased(home) is None
    finally:
        os.close(door)
    assert leased(home) == {1}
    lease.release()


def test_where_nothing_can_be_written_there_is_no_lease(tmp_path: Path) -> None:
    assert take_lease(tmp_path / "there-is-none", "ledger", SnapshotId(1)) is None


@pytest.mark.parametrize("linked", ["jobs", "jobs/ledger", "jobs/ledger/leases"])
def test_no_lease_is_put_where_a_link_in_the_home_leads(
    linked: str, home: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (home / JobLayout("ledger").leases).mkdir()
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "x"
    (home / linked).rename(elsewhere)
    (home / linked).symlink_to(elsewhere)
    before = {path: path.stat().st_mtime_ns for path in (elsewhere, *elsewhere.rglob("*"))}
    assert take_lease(home, "ledger", SnapshotId(7)) is None
    assert {path: path.stat().st_mtime_ns for path in (elsewhere, *elsewhere.rglob("*"))} == before

"""Snapshots that were made hostile, given to every command. A longer run: `python -m tests.hostile --cases 50000`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from strobe.cli.main import main
from strobe.hosts.spark.snapshot.export import export_snapshot
from strobe.store.locate import locate
from tests.hostile.cases import FakeSpark, Violation, alarm, run_case
from tests.hostile.frames import run_frame_case
from tests.hostile.homes import furnish, run_home_case
from tests.hostile.world import build, picture

CASES = 500


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """In memory, where there is such a place: thousands of small files come and go."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="strobe-hostile-", dir=memory if memory.is_dir() else None) as scratch:
        place = Path(scratch).resolve()
        build(place)
        yield place


@pytest.mark.parametrize("part", range(10))
def test_no_snapshot_harms_whoever_looks_at_it(part: int, root: Path, pytestconfig: pytest.Config) -> None:
    """The seed is that of the run, if it has one: `--hypothesis-seed`."""
    seed = pytestconfig.getoption("hypothesis_seed", None)
    for number in range(part * CASES // 10, (part + 1) * CASES // 10):
        run_case(int(seed) if str(seed).isdecimal() else 1, number, root, some=3)


@pytest.mark.parametrize("part", range(2))
def test_no_file_of_a_home_harms_whoever_looks_at_it(part: int, root: Path, pytestconfig: pytest.Config) -> None:
    given = pytestconfig.getoption("hypothesis_seed", None)
    for number in range(part * 50, (part + 1) * 50):
        run_home_case(int(given) if str(given).isdecimal() else 1, number, root, some=3)


@pytest.mark.parametrize("part", range(2))
def test_no_frame_harms_whoever_listens(part: int, root: Path, pytestconfig: pytest.Config) -> None:
    given = pytestconfig.getoption("hypothesis_seed", None)
    for number in range(part * 50, (part + 1) * 50):
        run_frame_case(int(given) if str(given).isdecimal() else 1, number, root)


def test_a_home_that_nobody_touched_passes_everything(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.hostile.homes._spoil", lambda *_: "nothing")
    codes: dict[str, set[int]] = {}
    monkeypatch.setattr("tests.hostile.cases.noted", lambda name, code: codes.setdefault(name, set()).add(code))
    for number in range(6):
        run_home_case(1, number, root)
    looking = {n: c for n, c in codes.items() if n in ("list", "explain", "transactions", "checks", "logs", "inspect")}
    assert looking == {name: {0} for name in looking}
    assert len(looking) == 6


def test_a_snapshot_that_nobody_touched_passes_everything(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the cases above would end at the first check, whatever was done to them."""
    monkeypatch.setattr("tests.hostile.cases.mutate", lambda *_: "nothing")
    codes: dict[str, set[int]] = {}
    monkeypatch.setattr("tests.hostile.cases.noted", lambda name, code: codes.setdefault(name, set()).add(code))
    for number in range(12):  # all three kinds
        run_case(1, number, root)
    assert codes.pop("plan") >= {0, 2}  # of live processes there is nothing to restore in a pipeline
    assert codes.pop("restore") == {0, 2}
    assert codes.pop("export") == {0, 1}  # the stand-in for Spark reads no state
    assert codes.pop("transactions") == {0, 2}
    assert codes.pop("sql strange state") == {1, 2}  # its schema is no schema
    for name in ("state", "state of a node", "in flight", "messages", "channel", "table", "files"):
        assert codes.pop(f"sql {name}") == {0, 2}  # a pipeline has no messages, processes no channels
    assert codes == {name: {0} for name in codes}


def test_a_canary_that_is_touched_is_noticed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def touch(case: object) -> int:
        (root / "canary" / "key").write_text("owned")
        return 0

    monkeypatch.setattr("tests.hostile.cases.WAYS", {"touch": touch})
    with pytest.raises(Violation, match="a canary was touched"):
        run_case(1, 0, root)
    (root / "canary" / "key").write_text("secret")


def test_an_export_deletes_nothing_outside_of_it_whatever_an_operator_is_called(root: Path, tmp_path: Path) -> None:
    before = picture(root / "canary")
    for number, name in enumerate(
        (f"x/{'../' * 12}{str(root)[1:]}/canary/empty", "../../../..", "/", "a\0b", "x" * 999, "", "\ud800")
    ):
        out = tmp_path / str(number)
        row = SimpleNamespace(operatorId=0, operatorName=name, stateStoreName=name, asDict=lambda: {})
        found = locate(str(root / "template" / "savepoint"), tmp_path)
        written = export_snapshot(
            found, out, tmp_path, cast(SparkSession, FakeSpark([row], out / "state" / "balances" / "0-x"))
        )
        assert any(each.error == "no state here" for each in written)
    assert picture(root / "canary") == before
    assert all(p.parent.parent == tmp_path for p in tmp_path.glob("*/state"))


def test_one_hostile_manifest_does_not_stop_the_job_that_owns_the_directory(root: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(root / "template" / "home", home)
    path = home / "jobs/ledger/snapshots/chk-000004/manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"size":', b'"size":184467440737095516160', 1))
    for command in (["list"], ["checkpoints", "ledger"], ["inspect", "ledger"]):
        with pytest.raises(SystemExit) as stopped:
            main([*command, "--home", str(home)])
        assert stopped.value.code == 0


def test_a_record_with_any_generation_is_looked_at_in_no_time(root: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(root / "template" / "home", home)
    furnish(home)
    record = home / "jobs/ledger/incarnation.json"
    record.write_text(record.read_text().replace('"generation": 0', f'"generation": {2**64}'))
    with alarm(), pytest.raises(SystemExit) as stopped:
        main(["status", "ledger", "--home", str(home)])
    assert stopped.value.code == 0


def test_a_lock_that_is_a_link_is_not_written_through(root: Path, tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    shutil.copytree(root / "template" / "home", home)
    furnish(home)
    other.write_text("somebody else's")
    lock = home / "jobs/ledger/lock"
    lock.unlink()
    lock.symlink_to(other)
    with pytest.raises(SystemExit) as stopped:
        main(["release", "ledger", "5", "--home", str(home)])
    assert stopped.value.code in (1, 2)
    assert other.read_text() == "somebody else's"

"""SIGKILL at every named step of a restore and of a rescale: running it again finishes it, or it never was.

One job lives through all of it. Each run is killed at the next step; the last one is a plain `strobe run`, which must
find and finish what the others left. The snapshot must be sound all the time, and the tables right at the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from strobe.hosts.spark.crash_points import POINTS
from strobe.store.locate import locate
from tests.spark.ledger_data import delta_rows, expected_balances, write_transfers

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PIPELINE = Path(__file__).parent / "pipelines" / "ledger_job.py"
CASES = {case: [p for p in POINTS if p.startswith(f"{case}.")] for case in ("restore", "rescale")}
ROWS = 60


def strobe_run(root: Path, *options: str, out: str = "out", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "strobe.cli.main", "run", str(PIPELINE), "--home", str(root / "home"), *options],
        env={**os.environ, "LEDGER_DATA": str(root / "in"), "LEDGER_OUT": str(root / out), "BOUNDED": "1", **env},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def killed(root: Path, point: str, *options: str, out: str = "out") -> None:
    run = strobe_run(root, *options, out=out, STROBE_CRASH_AT=point)
    assert run.returncode == -signal.SIGKILL, f"{point} was not reached:\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}"


def finished(root: Path, *options: str, out: str = "out") -> None:
    run = strobe_run(root, *options, out=out)
    assert run.returncode == 0, f"{run.stdout[-2000:]}\n{run.stderr[-3000:]}"


def check_tables(root: Path, rows: int, out: str = "out") -> None:
    counted = delta_rows(root / out / "postings", "select count(*), count(distinct id) from t")
    assert counted == [(2 * rows, rows)]
    balances = delta_rows(root / out / "balances", "select account, balance::BIGINT from t order by 1")
    assert balances == expected_balances(root / "in")


def check_snapshot(root: Path, name: str) -> None:
    found = locate(name, root / "home")
    assert [p for p in found.store.verify(found.snapshot) if p.harmful] == []


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger that has run to the end of three files."""
    root = tmp_path_factory.mktemp("crash")
    write_transfers(root / "in", files=3, rows=ROWS)
    finished(root)
    return root


def newest(root: Path) -> str:
    return f"ledger/{locate('ledger', root / 'home').snapshot}"


def test_a_restore_killed_at_every_step_is_finished_by_the_next_start(root: Path) -> None:
    snapshot = newest(root)
    write_transfers(root / "in", files=5, rows=ROWS)
    last = "restore.sink-back"  # half way: the plain run must find the intent
    for point in (*(p for p in CASES["restore"] if p != last), last):
        killed(root, point, "-s", snapshot, "-p", "3")
        check_snapshot(root, snapshot)
    finished(root)
    check_tables(root, 5 * ROWS)
    check_snapshot(root, snapshot)  # it was not claimed: it stays


def test_a_fork_killed_on_its_way_is_finished_by_the_next_start(root: Path) -> None:
    snapshot = newest(root)
    write_transfers(root / "in", files=6, rows=ROWS)
    options = ("--name", "fork")
    for point in ("restore.channel-cut", "restore.sink-back"):
        killed(root, point, "-s", snapshot, *options, out="fork")
    finished(root, *options, out="fork")
    check_tables(root, 6 * ROWS, out="fork")
    counted = delta_rows(root / "out/postings", "select count(*) from t")
    assert counted == [(2 * 5 * ROWS,)], "the original is as it was"


def test_a_rescale_killed_at_every_step_is_done_by_the_next_start(root: Path) -> None:
    write_transfers(root / "in", files=7, rows=ROWS)
    for point in CASES["rescale"]:
        killed(root, point, "-p", "5" if point != "rescale.done" else "6")
        check_snapshot(root, newest(root))
    finished(root, "-p", "5")
    check_tables(root, 7 * ROWS)
    manifest = locate("ledger", root / "home").load()
    assert {uid: node.partitions for uid, node in manifest.nodes.items()}["balances"] == 5  # type: ignore[index]

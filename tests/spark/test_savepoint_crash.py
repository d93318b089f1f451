"""SIGKILL at every named step of a savepoint, a stop and a drain: asking again finishes it, or it never was.

One job lives through all of it: each run is killed at the next step of the order that it is given, the next run resumes
it. What is complete must be sound whenever the job is dead; at the end every row must be in its window, once.
"""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from strobe.hosts.spark.crash_points import POINTS
from strobe.store.layout import BUCKET_SAVEPOINT_MARKER
from strobe.store.s3 import S3Store
from tests.spark.ledger_data import write_transfers
from tests.spark.orders import Place, until, windows, windows_in

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CASES = {case: [p for p in POINTS if p.startswith(f"{case}.")] for case in ("savepoint", "stop", "drain")}


def order(
    place: Place, process: subprocess.Popen[bytes], files: int, *args: str
) -> subprocess.CompletedProcess[str] | None:
    """Give the order once the job has read so many files, all of which are counted. None if it died before."""

    def ready() -> bool:
        return place.runtime().get("pid") == process.pid and bool(place.runtime().get("port"))

    until(lambda: process.poll() is not None or ready(), "it runs")
    until(lambda: process.poll() is not None or counted(place) >= files, "it has counted what is there")
    return place.strobe(*args) if process.poll() is None else None


def counted(place: Place) -> int:
    """Files, each a batch of the source, behind which nothing waits."""
    status = json.loads(place.strobe("status", "windows", "--json").stdout)
    if "error" in status and "stages" not in status:
        return 0  # it has just died
    batch = {s["uid"]: int(s["batch"]) for s in status.get("stages", ())}
    waiting = sum(int(s["lag_rows"] or 0) for s in status.get("stages", ()))
    return 0 if waiting or batch.get("seconds", -1) < 0 else batch["transfers"] + 1


def test_orders_that_are_cut_short_are_done_again_or_were_done(tmp_path: Path) -> None:
    place = Place(tmp_path)
    there = tmp_path / "there"
    orders: list[tuple[str, tuple[str, ...]]] = [(p, ("savepoint", "windows", str(there))) for p in CASES["savepoint"]]
    orders += [(p, ("stop", "windows", "--savepoint", str(tmp_path / "stopped"))) for p in CASES["stop"]]
    orders += [(p, ("stop", "windows", "--drain")) for p in CASES["drain"]]
    files = 0
    for point, args in orders:
        files += 1
        write_transfers(tmp_path / "in", files=files, rows=40)
        process = place.run(STROBE_CRASH_AT=point)
        try:
            said = order(place, process, files, *args)
            assert process.wait(120) == -signal.SIGKILL, f"{point} was not reached: {said}\n{place.said()}"
        finally:
            process.kill()
        # A last batch that was cut short is finished by the next start, which passes this point too.
        assert said is not None or point == "drain.last-batch-run"
        assert said is None or said.returncode == 1, "whoever asked is told that it did not work"
        assert (there / "manifest.json").exists() == (point not in ("savepoint.target-taken", "savepoint.rows-copied"))
        for complete in (there, tmp_path / "stopped"):
            assert not (complete / "manifest.json").exists() or place.sound(str(complete))

    write_transfers(tmp_path / "in", files=files + 1, rows=40)
    process = place.run()
    try:
        again = order(place, process, files + 1, "savepoint", "windows", str(there))
        assert again is not None
        assert again.returncode == 2
        assert "holds a snapshot already" in again.stderr
        drained = order(place, process, files + 1, "stop", "windows", "--drain", "--savepoint", str(tmp_path / "last"))
        assert drained is not None
        assert drained.returncode == 0, drained.stderr
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert place.sound(str(tmp_path / "last"))
    assert windows_in(tmp_path / "out") == windows(tmp_path / "in"), "a row is lost, late or there twice"


def test_a_savepoint_to_a_bucket_that_is_cut_short_is_left_alone_by_the_next_run(tmp_path: Path, s3_url: str) -> None:
    """The job has nothing to read: no batch comes between the order and the step that kills it."""
    place = Place(tmp_path)
    write_transfers(tmp_path / "in", files=1, rows=40)
    for point in CASES["savepoint"]:
        there = f"{s3_url}/{point}"
        process = place.run(STROBE_CRASH_AT=point)
        try:
            said = order(place, process, 1, "savepoint", "windows", there)
            assert process.wait(120) == -signal.SIGKILL, f"{point} was not reached: {said}\n{place.said()}"
        finally:
            process.kill()
        assert said is not None
        assert said.returncode == 1, "whoever asked is told that it did not work"
        left = set(S3Store(there).list(""))
        assert BUCKET_SAVEPOINT_MARKER in left
        assert ("manifest.json" in left) == (point == "savepoint.complete")
    whole = f"{s3_url}/savepoint.complete"
    assert place.sound(whole), "its manifest is what makes it complete, whatever else lies beside it"

    process = place.run()
    try:
        for point in CASES["savepoint"]:
            again = order(place, process, 1, "savepoint", "windows", f"{s3_url}/{point}")
            assert again is not None
            assert again.returncode == 2
            why = "holds a snapshot already" if point == "savepoint.complete" else "an earlier run of this one"
            assert why in again.stderr
        fresh = order(place, process, 1, "savepoint", "windows", f"{s3_url}/fresh")
        assert fresh is not None
        assert fresh.returncode == 0, fresh.stderr
    finally:
        process.terminate()
        process.wait(60)
    assert place.sound(f"{s3_url}/fresh")
    assert place.strobe("dispose", whole).returncode == 0
    assert list(S3Store(whole).list("")) == []

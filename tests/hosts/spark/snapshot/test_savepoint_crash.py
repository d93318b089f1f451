"""A death at every named step of a savepoint, a stop and a drain: asking again finishes it, or it never was.

One job goes through all of it, with images kept at the steps, and is really killed at the last step of its stop and at
the last one of its drain. What is complete must be sound whenever the job is dead. Every image is resumed, asked again,
and drained: then every row must be in its window, once.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import strobe
from strobe.hosts.shared.loopback import request
from strobe.hosts.spark.crash_points import POINTS
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.pipeline.loading import load_pipeline
from strobe.model.errors import Failed
from strobe.store.layout import BUCKET_SAVEPOINT_MARKER, JobLayout
from strobe.store.s3 import S3Store
from tests.support.spark.images import Images, WatchedDriver
from tests.support.spark.ledger_data import write_transfers
from tests.support.spark.orders import PATIENCE, PIPELINE, Place, windows, windows_in
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CASES = {case: [p for p in POINTS if p.startswith(f"{case}.")] for case in ("savepoint", "stop", "drain")}


def add_file(place: Place) -> int:
    """One more; how many there are now."""
    files = len(list((place.root / "in").glob("*.parquet"))) + 1
    write_transfers(place.root / "in", files=files, rows=40)
    return files


def counted(place: Place) -> int:
    """Files, each a batch of the source, behind which nothing waits."""
    status = json.loads(place.strobe("status", "windows", "--json").stdout)
    if "error" in status and "stages" not in status:
        return 0  # it has not started yet
    batch = {s["uid"]: int(s["batch"]) for s in status.get("stages", ())}
    waiting = sum(int(s["lag_rows"] or 0) for s in status.get("stages", ()))
    return 0 if waiting or batch.get("seconds", -1) < 0 else batch["transfers"] + 1


# ── a driver that dies ──────────────────────────────────────────────────────────────────────────────────────────────


def drive(place: Place, files: int) -> WatchedDriver:
    """It runs, and has counted so many files."""
    driver = WatchedDriver(place.root, "run", str(PIPELINE), "--home", str(place.root / "home"), env=place.env())
    try:
        ours = driver.process.pid
        eventually(
            lambda: place.runtime().get("pid") == ours and bool(place.runtime().get("port")),
            "it runs",
            process=driver.process,
        )
        eventually(lambda: counted(place) >= files, "it has counted what is there", process=driver.process)
    except BaseException:
        driver.kill()
        raise
    return driver


class Order:
    """Over HTTP: `strobe savepoint` and `strobe stop` give up on a driver that is stopped by a signal. It is given once
    the driver knows where to stand first, or it could be past that."""

    def __init__(self, place: Place, path: str, **body: object) -> None:
        token = place.root / "home" / JobLayout("windows").token
        self._send = partial(
            request, place.runtime()["port"], token, "POST", path, body, who="the job", gone="It is dead.", timeout=None
        )
        self._answer: Future[dict[str, Any]] | None = None

    def give(self) -> None:
        """The first time."""
        if self._answer is None:
            pool = ThreadPoolExecutor(1)
            self._answer = pool.submit(self._send)
            pool.shutdown(wait=False)

    @property
    def answer(self) -> Future[dict[str, Any]]:
        assert self._answer is not None
        return self._answer


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    """Of a job that has lived twice: its stop with a savepoint was killed, and then its drain."""
    place = Place(tmp_path_factory.mktemp("orders") / "job")
    images = Images(place.root)
    with drive(place, add_file(place)) as driver:
        order = Order(place, "/v1/savepoint", directory=str(place.root / "there"))
        for point in CASES["savepoint"]:
            images.take(driver, point, order.give)
        driver.go_on()
        order.answer.result(PATIENCE)
        stop = place.command("stop", "windows", "--savepoint", str(place.root / "stopped"))
        with subprocess.Popen(stop, stdout=subprocess.DEVNULL) as stopping:
            driver.reach(CASES["stop"][-1])
            driver.kill()
        assert stopping.returncode == 1, "whoever asked is told that it did not work"
    with drive(place, add_file(place)) as driver:
        order = Order(place, "/v1/stop", drain=True)
        for point in CASES["drain"][:-1]:
            images.take(driver, point, order.give)
        driver.reach(CASES["drain"][-1], order.give)
        driver.kill()
        assert isinstance(order.answer.exception(PATIENCE), Failed)
    return images


# ── a job that is resumed ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def resume(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Place], strobe.Job]]:
    """Resumes the job with one more file, and returns when it has counted all. It ends with the test."""
    jobs: list[strobe.Job] = []

    def start(place: Place) -> strobe.Job:
        for name in ("WINDOWS_DATA", "WINDOWS_OUT"):
            monkeypatch.setenv(name, place.env()[name])
        files = add_file(place)
        job = start_job(load_pipeline(str(PIPELINE)), home=str(place.root / "home"), spark=spark)
        jobs.append(job)
        eventually(lambda: counted(place) >= files, "it has counted what is there")
        return job

    yield start
    for job in jobs:
        job.stop()


def check_orders(place: Place, resume: Callable[[Place], strobe.Job]) -> None:
    """What is complete is sound; what is not is done when it is asked for again."""
    there = place.root / "there"
    whole = (there / "manifest.json").exists()
    for complete in (there, place.root / "stopped"):
        assert not (complete / "manifest.json").exists() or place.sound(str(complete))
    job = resume(place)
    again = place.strobe("savepoint", "windows", str(there))
    assert again.returncode == (2 if whole else 0), again.stderr
    assert not whole or "holds a snapshot already" in again.stderr
    assert place.sound(str(there))
    drained = place.strobe("stop", "windows", "--drain", "--savepoint", str(place.root / "last"))
    assert drained.returncode == 0, drained.stderr
    assert job.wait(PATIENCE)
    assert place.sound(str(place.root / "last"))
    assert windows_in(place.root / "out") == windows(place.root / "in"), "a row is lost, late or there twice"


def test_orders_that_are_cut_short_are_done_again_or_were_done(
    images: Images, resume: Callable[[Place], strobe.Job], spark: SparkSession
) -> None:
    place = Place(images.root)
    check_orders(place, resume)  # what the SIGKILL has left
    for point in images.points:
        images.put_back(point, spark)
        complete = (place.root / "there/manifest.json").exists()
        assert complete == (point not in ("savepoint.target-taken", "savepoint.rows-copied"))
        check_orders(place, resume)


def test_a_savepoint_to_a_bucket_that_is_cut_short_is_left_alone_by_the_next_run(
    tmp_path: Path, s3_url: str, resume: Callable[[Place], strobe.Job]
) -> None:
    """What it leaves at each step is kept under the step's name; at the last step the driver is killed."""
    place = Place(tmp_path / "job")
    there = S3Store(f"{s3_url}/there")
    *points, last = CASES["savepoint"]
    with drive(place, add_file(place)) as driver:
        order = Order(place, "/v1/savepoint", directory=there.url)
        for point in points:
            driver.reach(point, order.give)
            for key in there.list(""):
                S3Store(f"{s3_url}/{point}").put(key, there.get(key))
        driver.reach(last, order.give)
        driver.kill()
        assert isinstance(order.answer.exception(PATIENCE), Failed)
    assert place.sound(there.url), "its manifest is what makes it complete, whatever else lies beside it"
    left = {f"{s3_url}/{point}": "an earlier run of this one" for point in points}
    left[there.url] = "holds a snapshot already"
    for url in left:
        assert BUCKET_SAVEPOINT_MARKER in set(S3Store(url).list(""))
        assert ("manifest.json" in set(S3Store(url).list(""))) == (url == there.url)

    resume(place)
    for url, why in left.items():
        again = place.strobe("savepoint", "windows", url)
        assert again.returncode == 2
        assert why in again.stderr
    fresh = place.strobe("savepoint", "windows", f"{s3_url}/fresh")
    assert fresh.returncode == 0, fresh.stderr
    assert place.sound(f"{s3_url}/fresh")
    assert place.strobe("dispose", there.url).returncode == 0
    assert list(there.list("")) == []

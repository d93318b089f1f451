"""A death at every named step of a restore, a rescale and an unchaining: another run finishes it, or it never was.

One driver does each of them, with an image kept at each step, and is really killed at the last one. Every image is run
again: with the same order, or plainly, which must find and finish what is half done. The snapshot must be sound all the
time, and the tables right at the end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from strobe.hosts.spark.crash_points import POINTS
from strobe.hosts.spark.job.rehearse import dry_resume
from strobe.hosts.spark.pipeline.loading import load_pipeline
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.model.errors import Misuse
from strobe.store.locate import locate
from tests.support.spark.images import Images, WatchedDriver
from tests.support.spark.jobs import run_to_the_end
from tests.support.spark.ledger_data import delta_rows, expected_balances, write_transfers

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PIPELINE = Path(__file__).parents[3] / "support" / "spark" / "pipelines" / "ledger_job.py"
CASES = {case: [p for p in POINTS if p.startswith(f"{case}.")] for case in ("restore", "rescale", "unchain")}
ROWS = 60


class Ledger:
    """A ledger in a directory, of which images can be taken."""

    def __init__(self, root: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._spark = spark
        self._monkeypatch = monkeypatch
        self.chain = False

    def env(self, out: str) -> dict[str, str]:
        return {
            "LEDGER_DATA": str(self.root / "in"), "LEDGER_OUT": str(self.root / out), "BOUNDED": "1",
            "LEDGER_CHAIN": "1" if self.chain else "",
        }  # fmt: skip

    def die(self, points: list[str], *options: str, out: str = "out") -> Images:
        """One driver with these options: an image at each of the points, and SIGKILL at the last."""
        images = Images(self.root)
        run = ("run", str(PIPELINE), "--home", str(self.root / "home"), *options)
        with WatchedDriver(self.root, *run, env=self.env(out)) as driver:
            for point in points[:-1]:
                images.take(driver, point)
            driver.reach(points[-1])
            driver.kill()
        return images

    def finish(self, *, name: str = "ledger", out: str = "out", **options: Any) -> None:
        for key, value in self.env(out).items():
            self._monkeypatch.setenv(key, value)
        pipeline = load_pipeline(str(PIPELINE)).renamed(name)
        run_to_the_end(pipeline, self.root / "home", self._spark, **options)

    def put_back(self, images: Images, point: str) -> None:
        images.put_back(point, self._spark)

    def check_tables(self, files: int, out: str = "out") -> None:
        rows = files * ROWS
        counted = delta_rows(self.root / out / "postings", "select count(*), count(distinct id) from t")
        assert counted == [(2 * rows, rows)]
        balances = delta_rows(self.root / out / "balances", "select account, balance::BIGINT from t order by 1")
        assert balances == expected_balances(self.root / "in")

    def check_snapshot(self, name: str) -> None:
        found = locate(name, self.root / "home")
        assert [p for p in found.store.verify(found.snapshot) if p.harmful] == []

    def newest(self) -> str:
        return f"ledger/{locate('ledger', self.root / 'home').snapshot}"

    def queries(self) -> set[str]:
        return set(locate("ledger", self.root / "home").load().nodes)


@pytest.fixture
def ledger(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """It has run to the end of three files."""
    ledger = Ledger(tmp_path / "job", spark, monkeypatch)
    write_transfers(ledger.root / "in", files=3, rows=ROWS)
    ledger.finish()
    return ledger


def test_a_restore_that_dies_at_any_step_is_finished_by_the_next_start(ledger: Ledger) -> None:
    snapshot = ledger.newest()
    write_transfers(ledger.root / "in", files=5, rows=ROWS)
    images = ledger.die(CASES["restore"], "-s", snapshot, "-p", "3")
    ledger.check_snapshot(snapshot)
    ledger.finish()
    ledger.check_tables(5)
    for point in images.points:
        ledger.put_back(images, point)
        ledger.check_snapshot(snapshot)
        if point in ("restore.begun", "restore.sink-back"):  # half way: a plain run must find the intent
            ledger.finish()
        else:
            ledger.finish(snapshot=snapshot, partitions=3)
        ledger.check_tables(5)
        ledger.check_snapshot(snapshot)  # it was not claimed: it stays


def test_a_fork_that_dies_on_its_way_is_finished_by_the_next_start(ledger: Ledger) -> None:
    snapshot = ledger.newest()
    write_transfers(ledger.root / "in", files=4, rows=ROWS)
    images = ledger.die(
        ["restore.channel-cut", "restore.sink-back"], "-s", snapshot, "--name", "fork", out="fork"
    )  # fmt: skip
    for point in (None, *images.points):
        if point is not None:
            ledger.put_back(images, point)
        ledger.finish(name="fork", out="fork")
        ledger.check_tables(4, out="fork")
        counted = delta_rows(ledger.root / "out/postings", "select count(*) from t")
        assert counted == [(2 * 3 * ROWS,)], "the original is as it was"


def test_a_fork_that_dies_before_its_restore_has_begun_does_not_begin_at_its_sources(ledger: Ledger) -> None:
    snapshot = ledger.newest()
    write_transfers(ledger.root / "in", files=4, rows=ROWS)
    ledger.die(["restore.laid-out"], "-s", snapshot, "--name", "fork", out="fork")
    with pytest.raises(Misuse, match=f"was to begin from the snapshot {snapshot}.*would begin at its sources"):
        ledger.finish(name="fork", out="fork")
    with pytest.raises(Misuse, match="was to begin from the snapshot"):
        dry_resume(
            load_pipeline(str(PIPELINE)).renamed("fork"), restore=RestoreOptions(), home=str(ledger.root / "home")
        )
    assert not (ledger.root / "fork").exists()
    ledger.finish(name="fork", out="fork", snapshot=snapshot)
    ledger.check_tables(4, out="fork")
    ledger.finish(name="fork", out="fork")


def test_a_rescale_that_dies_at_any_step_is_done_by_the_next_start(ledger: Ledger) -> None:
    write_transfers(ledger.root / "in", files=4, rows=ROWS)
    images = ledger.die(CASES["rescale"], "-p", "5")
    for point, partitions in ((None, 6), *((point, 5) for point in images.points)):
        if point is not None:
            ledger.put_back(images, point)
        ledger.check_snapshot(ledger.newest())
        ledger.finish(partitions=partitions)
        ledger.check_tables(4)
        manifest = locate("ledger", ledger.root / "home").load()
        assert {uid: node.partitions for uid, node in manifest.nodes.items()}["balances"] == partitions  # type: ignore[index]


@pytest.fixture
def chained(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """It has run to the end of three files; the query of postings computes transfers. Two files more have come."""
    ledger = Ledger(tmp_path / "job", spark, monkeypatch)
    ledger.chain = True
    write_transfers(ledger.root / "in", files=3, rows=ROWS)
    ledger.finish()
    assert ledger.queries() == {"postings", "balances"}
    write_transfers(ledger.root / "in", files=5, rows=ROWS)
    return ledger


def test_a_plain_run_parts_a_chained_stage_from_a_query_that_was_killed_in_a_batch(chained: Ledger) -> None:
    """The batch was planned and had rows, of which nobody has seen any: it is planned again, in two queries."""
    chained.die(["batch.computed@postings"])
    chained.chain = False
    images = chained.die(CASES["unchain"])
    for point in (None, *images.points):
        if point is not None:
            chained.put_back(images, point)
        chained.finish()
        chained.check_tables(5)
        assert chained.queries() == {"transfers", "postings", "balances"}
        chained.finish()
        chained.check_tables(5)


def test_a_batch_that_a_sink_has_is_finished_by_the_query_that_planned_it(chained: Ledger) -> None:
    images = chained.die(["batch.in-sink@postings", "batch.in-sink@postings"])
    chained.chain = False
    with pytest.raises(
        Misuse, match="'transfers' cannot be given a query of its own now: the query of 'postings'"
    ) as no:
        chained.finish()
    assert "`strobe run -s ledger FILE`" in no.value.next
    chained.finish(snapshot="ledger")  # what it says
    chained.check_tables(5)
    chained.put_back(images, images.points[0])
    chained.chain = True
    chained.finish()  # the other way out that it names
    chained.chain = False
    chained.finish()
    chained.check_tables(5)
    assert chained.queries() == {"transfers", "postings", "balances"}

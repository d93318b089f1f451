"""Files that somebody has edited, or a disk has lost: named, with the stage; nothing is made worse, and the job can go
on once they are back."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import strobe
from strobe.cli.main import main
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.job.job import start_job
from strobe.model.errors import Damaged
from tests.hosts.spark.pipeline.test_pipeline import ledger
from tests.support.spark.ledger_data import delta_rows, expected_balances, write_transfers

pytestmark = pytest.mark.spark

Edit = Callable[[Path], object]


@dataclass(frozen=True)
class World:
    """A ledger that has run to its end, in a directory of its own."""

    root: Path
    data: Path

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def job(self) -> Path:
        return self.home / "jobs" / "ledger"

    def checkpoint(self, uid: str) -> Path:
        return self.job / "stages" / uid / "t1" / "spark"

    def run(self, spark: SparkSession, **options: object) -> strobe.Job:
        job = start_job(by_commit(self.data, **options), home=str(self.home), base=self.root, spark=spark)
        assert job.wait(180)
        return job

    def check(self) -> None:
        balances = delta_rows(self.root / "out/balances", "select account, balance::BIGINT from t order by 1")
        assert balances == expected_balances(self.data)

    def files(self) -> dict[str, bytes]:
        """The stages' checkpoints and the snapshots, every byte."""
        places = (self.job / "stages", self.job / "snapshots", self.job / "blobs")
        return {str(p): p.read_bytes() for place in places for p in place.rglob("*") if p.is_file()}


def by_commit(data: Path, **options: object) -> strobe.Pipeline:
    """The ledger, with a batch for each commit of a producer, so that there are always at least three."""
    plain = ledger(data, **options)
    restart = strobe.RestartPolicy(attempts=3, first_pause=0.1)
    pipeline = strobe.Pipeline("ledger", checkpoint=plain.checkpoint, restart=restart)
    for uid, spec in plain.stages.items():
        pipeline.stage(
            uid,
            reads=spec.reads,
            output_mode=spec.output_mode,
            to=spec.sinks,
            max_rows_per_batch=1 if spec.reads else None,
            trigger=spec.trigger,
        )(spec.function)
    return pipeline


@pytest.fixture(scope="module")
def done(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("done")
    world = World(root, write_transfers(root / "in", files=3, rows=40))
    job = world.run(spark)
    assert job.state is strobe.JobState.FINISHED, job.error
    return world


@pytest.fixture
def world(done: World, tmp_path: Path) -> World:
    """A copy of it, to be damaged. The data stays where it was: Spark's checkpoint names the files."""
    shutil.copytree(done.root, tmp_path / "world", ignore=shutil.ignore_patterns("in"))
    return World(tmp_path / "world", done.data)


def flip(path: Path) -> None:
    """One bit of the byte in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def garble(path: Path) -> None:
    path.write_bytes(b"v1\n{\xff")


def cut(path: Path) -> None:
    path.write_bytes(b"")


def lose_the_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


# ── Spark's checkpoint of a stage ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("uid", "file", "edit"),
    [
        ("balances", "offsets/last", Path.unlink),
        ("balances", "offsets/last", garble),
        ("balances", "offsets/last", cut),
        ("balances", "offsets/last-1", Path.unlink),
        ("postings", "commits/last", garble),
        ("postings", "commits/last", cut),
        ("postings", "metadata", Path.unlink),
        ("postings", "metadata", garble),
        ("balances", "state/0/0/2.changelog", Path.unlink),
        ("balances", "state/0/1/1.changelog", Path.unlink),
        ("balances", "state/0/0/2.changelog", cut),
        ("balances", "state/0/1/2.changelog", lose_the_end),
        ("transfers", "sources/0/1", Path.unlink),
    ],
)
def test_an_edited_checkpoint_is_refused_with_the_name_of_stage_and_file_and_nothing_is_started(
    spark: SparkSession, world: World, uid: str, file: str, edit: Edit
) -> None:
    checkpoint = world.checkpoint(uid)
    last = spark_checkpoint.last_committed(checkpoint)
    assert last is not None
    path = checkpoint / file.replace("last-1", str(last - 1)).replace("last", str(last))
    original = path.read_bytes()
    edit(path)
    before = world.files()
    with pytest.raises(Damaged) as refused:
        world.run(spark)
    assert refused.value.exit_code == 1
    assert f"Stage {uid!r}: " in refused.value.what
    assert str(path) in refused.value.what
    assert spark.streams.active == []
    assert world.files() == before
    path.write_bytes(original)
    spark_checkpoint.check(checkpoint)


def test_a_checkpoint_that_is_gone_while_the_channel_is_not_is_damage(spark: SparkSession, world: World) -> None:
    """Starting again would number its batches as those that the channel already has."""
    shutil.rmtree(world.checkpoint("transfers"))
    with pytest.raises(Damaged, match=r"Stage 'transfers' has written batch 2 to its channel, .* knows of none"):
        world.run(spark)


def test_state_that_spark_cannot_read_fails_the_stage_and_the_job_goes_on_when_it_is_put_back(
    spark: SparkSession, world: World
) -> None:
    write_transfers(world.data, files=4, rows=40)  # so that there is a batch, which needs the state
    changelog = world.checkpoint("balances") / "state/0/0/2.changelog"
    original = changelog.read_bytes()
    flip(changelog)
    job = world.run(spark)
    assert job.state is strobe.JobState.FAILED
    assert "stage 'balances' failed for good: SparkException: [CANNOT_LOAD_STATE_STORE" in job.error
    changelog.write_bytes(original)
    job = world.run(spark)
    assert job.state is strobe.JobState.FINISHED, job.error
    world.check()


# ── snapshots ───────────────────────────────────────────────────────────────────────────────────────────────────────


def verify(world: World, capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(["verify", "ledger", "--home", str(world.home)])
    return stopped.value.code, capsys.readouterr().out


def newest_manifest(world: World) -> Path:
    return max((world.job / "snapshots").glob("*/manifest.json"))


def test_verify_names_a_blob_with_a_flipped_bit(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(world, capsys)[0] == 0
    # One that the manifest names: a checkpoint that was under way at the end leaves some that nobody needs.
    named = newest_manifest(world).read_text()
    blob = max(p for p in (world.job / "blobs").rglob("*") if p.is_file() and p.name in named)
    flip(blob)
    code, said = verify(world, capsys)
    assert code == 1
    assert f"is damaged: its {blob.stat().st_size:,} bytes hash to " in said
    assert str(blob) in said
    assert "of stage " in said


def test_verify_names_a_manifest_with_a_flipped_bit(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = newest_manifest(world)
    flip(manifest)
    code, said = verify(world, capsys)
    assert code == 1
    assert str(manifest) in said
    assert "Traceback" not in said


@pytest.mark.parametrize("edit", [flip, cut], ids=["flipped", "cut-off"])
def test_a_job_goes_on_without_a_manifest_that_is_damaged_and_retires_it_like_any_other(
    spark: SparkSession, world: World, caplog: pytest.LogCaptureFixture, edit: Edit
) -> None:
    """Going on needs the stages' own checkpoints and the channels; a manifest is for restoring."""
    manifest = newest_manifest(world)
    edit(manifest)
    write_transfers(world.data, files=4, rows=40)
    with caplog.at_level(logging.WARNING, "strobe"):
        job = world.run(spark, retained=1)
    assert job.state is strobe.JobState.FINISHED, job.error
    world.check()
    said = [r.getMessage() for r in caplog.records if "is damaged and cannot be restored" in r.getMessage()]
    assert len(said) == 1
    assert str(manifest) in said[0]
    (kept,) = job.store.list()
    assert f"chk-{kept:06d}" != manifest.parent.name
    assert job.store.verify(kept) == ()

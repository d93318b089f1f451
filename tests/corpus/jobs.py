"""An entry as a job: run undisturbed, killed and resumed, restored with another number of partitions."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

import strobe
from strobe.hosts.spark import crash_points
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.hosts.spark.restore.rescale import DEFAULT_PARTITIONS
from strobe.hosts.spark.stage.runner import StageRunner, StageState
from strobe.model.errors import StrobeError
from tests.corpus.entry import load
from tests.corpus.feeding import feed, lay_out
from tests.corpus.tables import PATIENCE, compared, read_table, rest_of

__all__ = ["HOWS", "Killed", "run_job", "seeded_point"]

HOWS: Final = ("plain", "killed", "restored")
POINTS: Final = ("batch.computed", "batch.in-channel", "batch.in-sink")


class Killed(Exception):
    """Stands for the death of the process, where one Spark session is to live through many of them."""


class World:
    """One run of an entry: where everything is, and the job that runs now."""

    def __init__(self, name: str, spark: SparkSession, root: Path) -> None:
        self.name, self.spark, self.root = name, spark, root
        self.base = root / "base"
        self.entry = load(name, root / "in")
        lay_out(self.entry, root / "in")
        self.job: strobe.Job | None = None

    def start(self, home: str = "home", **options: object) -> None:
        self.entry = load(self.name, self.root / "in")
        restore = RestoreOptions(**options)  # type: ignore[arg-type]
        self.job = start_job(
            self.entry.pipeline, home=str(self.root / home), base=self.base, spark=self.spark, restore=restore
        )

    def feed(self, step: int) -> None:
        feed(self.entry, step, self.root / "in")

    def rest(self, step: int) -> None:
        """Until everything that has come in is processed. Raises what the job died of."""
        assert self.job is not None
        for uid, runner in self.job.runners.items():  # upstream first
            try:
                if runner.state is StageState.RUNNING:
                    rest_of(self.entry, uid, step, partial(_rest, runner), lambda uid=uid: len(self.rows(uid)))  # type: ignore[misc]
            except Exception as error:
                self.job.wait(60)
                raise Killed(self.job.error or str(error)) from error
            if self.job.state.over and self.job.state is not strobe.JobState.FINISHED:
                self.job.wait(60)
                raise Killed(self.job.error)

    def deliver(self) -> None:
        """Until rows that are delivered on snapshot are in their tables. A job that ends by itself sees to that."""
        assert self.job is not None
        try:
            self.job.checkpoint(PATIENCE)
        except StrobeError:
            if self.job.state.over:
                return
            raise
        assert self.job._commits.settle(PATIENCE), "some rows are not delivered"

    def rows(self, uid: str) -> list[object]:
        return list(read_table(self.entry.outputs[uid], self.base))

    def tables(self) -> dict[str, list[str]]:
        return {uid: compared(self.entry, uid, read_table(s, self.base)) for uid, s in self.entry.outputs.items()}

    def stop(self) -> None:
        if self.job is not None:
            self.job.stop()


def _rest(runner: StageRunner) -> None:
    """Until it has processed what its source had when this was called, and what its channels have."""
    while True:
        if runner._query is not None and runner.has_source:  # without one, it waits for what the stage holds
            runner._query.processAllAvailable()
        if not runner.spec.inputs or runner.state is not StageState.RUNNING:
            return
        if runner.agent.lag() == (0, 0) and runner.agent.idle:  # a barrier makes it stop in front of rows for a moment
            return
        time.sleep(0.01)


def run_job(name: str, how: str, seed: int, spark: SparkSession, root: Path) -> dict[str, list[str]]:
    """The rows of each of its tables."""
    world = World(name, spark, root)
    dice = random.Random(f"{name} {how} {seed}")
    moment = dice.randrange(len(world.entry.steps))
    try:
        world.start()
        for step in range(len(world.entry.steps)):
            if how == "killed" and step == moment:
                _killed(world, step, dice)
            elif how == "restored" and step == moment:
                _restored(world, step, dice)
            else:
                world.feed(step)
                world.rest(step)
        world.deliver()
    finally:
        world.stop()
    return world.tables()


# ── what is done to it ──────────────────────────────────────────────────────────────────────────────────────────────


def _killed(world: World, step: int, dice: random.Random) -> None:
    """It dies in a batch of this step, or, if it does not come that far, right behind it."""
    with dying_at(*seeded_point(dice)) as died:
        world.feed(step)
        with contextlib.suppress(Killed):
            world.rest(step)
    world.stop()
    print(f"# {world.name}: step {step}, killed at {died[0] if died else 'rest'}")
    world.start()
    world.rest(step)


def seeded_point(dice: random.Random) -> tuple[str, int]:
    return dice.choice(POINTS), dice.randint(1, 4)


@contextlib.contextmanager
def dying_at(wanted: str, count: int) -> Iterator[list[str]]:
    """The stage that comes to this point for the `count`-th time dies there, and the job with it."""
    original, left, died = crash_points.point, [count], []

    def point(name: str, stage: str = "") -> None:
        original(name, stage)
        if name == wanted:
            left[0] -= 1
            if left[0] == 0:
                died.append(f"{name} of {stage}")
                raise Killed(f"killed at {name}")

    crash_points.point = point
    try:
        yield died
    finally:
        crash_points.point = original


def _restored(world: World, step: int, dice: random.Random) -> None:
    """A savepoint is taken in the middle of the step, or behind it. Another job begins there, with other partitions."""
    world.feed(step)
    middle = dice.random() < 0.5
    if not middle:
        world.rest(step)
    assert world.job is not None
    savepoint = str(world.job.savepoint(world.root / "savepoint"))
    world.job.stop()
    partitions = dice.choice((1, 3, 5))
    print(
        f"# {world.name}: step {step}, savepoint {'in the middle' if middle else 'behind it'}, {partitions} partitions"
    )
    theirs, world.base = world.base, world.root / "fork"
    fixed = dict.fromkeys(world.entry.fixed, world.entry.pipeline.partitions or DEFAULT_PARTITIONS)
    world.start("forked", snapshot=savepoint, partitions=partitions, stage_partitions=fixed, sinks_from=(str(theirs),))
    world.rest(step)


def reason(error: BaseException) -> str:
    return error.what if isinstance(error, StrobeError) else f"{type(error).__name__}: {error}"

"""How long a checkpoint takes with a backlog, and in a chain of busy stages: by default, unaligned, aligned.

    python bench/unaligned.py                   a backlog of 30 commits of 2 s, chains of 2, 4 and 8 stages
    python bench/unaligned.py --quick           6 commits of 1 s, a chain of 2 stages

Backlog: a stage reads two channels. Its sink takes a fixed time for the rows of one commit, and the fast channel has
many of them. Checkpoints are requested, one after the other, until the backlog is read. By default the stage finds out
by itself how much it can read at once; on the other sides it may read one commit at a time.

Depth: every stage of a chain takes a fixed time per batch, and there is always more to read. Checkpoints are requested
one after the other, at moments that do not depend on the batches. There are four sides: default settings; unaligned,
with the start sent to all stages, which is how unaligned checkpoints start; with the start sent only to the first one;
and aligned.

Both print the median and the 99th percentile in batch times: multiples of the slow stages' median batch in that run.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

import strobe
from bench._report import figure
from bench._sides import percentile
from strobe.hosts.spark.job.job import start_job
from strobe.model.ids import NodeId
from strobe.protocol.coordinator.messages import CoordinatorSettings

ROWS = 1000


@dataclass(frozen=True)
class Measured:
    """Seconds of checkpoints and of batches."""

    took: list[float]
    batches: list[float]
    rows: int = 0  # in flight at the first cut

    def words(self) -> str:
        batch, (middle, worst) = statistics.median(self.batches), self.in_batches()
        return f"p50 {middle:5.1f}, p99 {worst:5.1f} batch times of {batch:.1f} s, {len(self.took)} checkpoints"

    def in_batches(self) -> tuple[float, float]:
        """p50 and p99, in batch times."""
        batch = statistics.median(self.batches)
        return percentile(self.took, 0.5) / batch, percentile(self.took, 0.99) / batch

    def report(self, what: str) -> None:
        for name, found, target in zip(("p50", "p99"), self.in_batches(), (1, 2), strict=True):
            figure("unaligned.py", f"{what}, by default, {name} of checkpoints, in batch times", found, at_most=target)


def measure(config: strobe.CheckpointConfig, backlog: int, seconds: float, root: Path, limit: int | None) -> Measured:
    """With a backlog of this many commits, each of which takes `seconds`."""
    shutil.rmtree(root, ignore_errors=True)
    data = root / "in"
    data.mkdir(parents=True)
    for number in range(backlog):
        pq.write_table(pa.table({"id": range(number * ROWS, (number + 1) * ROWS)}), data / f"{number}.parquet")
    pipeline = strobe.Pipeline("backlog", checkpoint=config, chain=False)
    batches: list[float] = []

    def slow(batch: Any, batch_id: int) -> None:
        began = time.monotonic()
        time.sleep(seconds * batch.count() / ROWS)
        batches.append(time.monotonic() - began)

    pipeline.stage(uid="fast")(
        lambda spark: spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1).parquet(str(data))
    )
    pipeline.stage(uid="quiet")(
        lambda spark: spark.readStream.format("rate").option("rowsPerSecond", 1).load().select("value")
    )
    pipeline.stage(uid="both", reads=["fast", "quiet"], to=strobe.ForeachBatchSink(slow), max_rows_per_batch=limit)(
        lambda fast, quiet: fast.union(quiet.select(quiet["value"].alias("id")))
    )
    job = start_job(pipeline, home=str(root / "home"), master="local[2]")
    try:
        while (job.status().stages[0].rows_out or 0) < backlog * ROWS:
            if job.wait(0.1):
                raise SystemExit(f"the job ended: {job.error}")
        took: list[float] = []
        rows = 0
        both = job.runners[NodeId("both")].agent
        while not took or both.lag_of(NodeId("fast"))[0]:
            began = time.monotonic()
            manifest = job.store.load(job.checkpoint())
            took.append(time.monotonic() - began)
            rows = rows or manifest.rows_in_flight
        return Measured(took, batches, rows)
    finally:
        job.stop()


class FromTheFirstStage(strobe.CheckpointConfig):
    """Only stages without inputs are told that a checkpoint begins."""

    def coordinator(self) -> CoordinatorSettings:
        return replace(super().coordinator(), everywhere=False)


WAYS: dict[str, strobe.CheckpointConfig] = {
    "by default": strobe.CheckpointConfig(),
    "unaligned, all told": strobe.CheckpointConfig(interval=None, mode="unaligned"),
    "unaligned, first told": FromTheFirstStage(interval=None, mode="unaligned"),
    "aligned": strobe.CheckpointConfig(interval=None, mode="aligned"),
}


def measure_chain(
    config: strobe.CheckpointConfig, depth: int, seconds: float, checkpoints: int, root: Path
) -> Measured:
    shutil.rmtree(root, ignore_errors=True)
    pipeline = strobe.Pipeline("chain", checkpoint=config)

    batches: list[float] = []
    limit = None if config.interval is not None else 1

    def slow(batch: Any, batch_id: int) -> None:
        began = time.monotonic()
        batch.count()
        time.sleep(seconds)
        batches.append(time.monotonic() - began)

    pipeline.stage(uid="s0", to=strobe.ForeachBatchSink(slow))(
        lambda spark: spark.readStream.format("rate").option("rowsPerSecond", 100).load().select("value")
    )
    for number in range(1, depth):
        reads = f"s{number - 1}"
        pipeline.stage(uid=f"s{number}", reads=reads, to=strobe.ForeachBatchSink(slow), max_rows_per_batch=limit)(
            lambda **channels: next(iter(channels.values()))
        )
    job = start_job(pipeline, home=str(root / "home"), master="local[2]")
    try:
        while not all((stage.rows_in or 0) > 0 for stage in job.status().stages[1:]):
            if job.wait(0.1):
                raise SystemExit(f"the job ended: {job.error}")
        took = []
        for number in range(checkpoints):
            time.sleep(seconds * (number % 7) / 7)
            began = time.monotonic()
            job.checkpoint()
            took.append(time.monotonic() - began)
        return Measured(took, batches)
    finally:
        job.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backlog", type=int, default=30, help="commits")
    parser.add_argument("--batch-seconds", type=float, default=2.0)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "strobe-bench-unaligned")
    parser.add_argument("--depths", default="2,4,8", help="stages of each chain; empty: none")
    parser.add_argument("--checkpoints", type=int, default=20, help="of each chain")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.backlog, args.batch_seconds, args.depths, args.checkpoints = 6, 1.0, "2", 2
    for way in ("by default", "unaligned, all told", "aligned"):
        limit = None if way == "by default" else ROWS
        found = measure(WAYS[way], args.backlog, args.batch_seconds, args.dir, limit)
        print(f"backlog, {way:<22} {found.words()}; {found.rows:,} rows in flight at the first", flush=True)
        if way == "by default":
            found.report("a backlog")
    for depth in map(int, filter(None, args.depths.split(","))):
        for way, config in WAYS.items():
            found = measure_chain(config, depth, args.batch_seconds, args.checkpoints, args.dir)
            print(f"{depth} stages, {way:<22} {found.words()}", flush=True)
            if way == "by default":
                found.report(f"{depth} stages")


if __name__ == "__main__":
    main()

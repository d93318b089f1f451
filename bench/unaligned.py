"""How long a checkpoint takes when one input has a backlog, and in a chain of busy stages, unaligned and aligned.

    python bench/unaligned.py                   a backlog of 30 batches of 2 s, chains of 2, 4 and 8 stages
    python bench/unaligned.py --quick           6 batches of 1 s, a chain of 2 stages

Backlog: a stage reads two channels. Its sink takes a fixed time per batch and it may read one commit of the fast
channel at a time, so the backlog there is worth so many batches. Then a checkpoint is asked for.

Depth: every stage of a chain takes a fixed time per batch, and there is always more to read. Checkpoints are asked for
one after the other, at moments that have nothing to do with the batches; the median and the longest are told in batch
times. Once all stages are told to start, which is how unaligned checkpoints start, once only the first one is, and once
aligned.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

import strobe
from bench._report import figure
from strobe.hosts.spark.job.job import start_job
from strobe.protocol.coordinator.messages import CoordinatorSettings

ROWS = 1000


def measure(mode: str, backlog: int, batch_seconds: float, root: Path) -> tuple[float, int]:
    """Seconds of a checkpoint, and rows in flight at its cut."""
    shutil.rmtree(root, ignore_errors=True)
    data = root / "in"
    data.mkdir(parents=True)
    for number in range(backlog):
        pq.write_table(pa.table({"id": range(number * ROWS, (number + 1) * ROWS)}), data / f"{number}.parquet")
    config = strobe.CheckpointConfig(interval=None, mode=mode)
    pipeline = strobe.Pipeline("backlog", checkpoint=config)

    def slow(batch: Any, batch_id: int) -> None:
        batch.count()
        time.sleep(batch_seconds)

    pipeline.stage(uid="fast")(
        lambda spark: spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1).parquet(str(data))
    )
    pipeline.stage(uid="quiet")(
        lambda spark: spark.readStream.format("rate").option("rowsPerSecond", 1).load().select("value")
    )
    pipeline.stage(uid="both", reads=["fast", "quiet"], to=strobe.ForeachBatchSink(slow), max_rows_per_batch=ROWS)(
        lambda fast, quiet: fast.union(quiet.select(quiet["value"].alias("id")))
    )
    job = start_job(pipeline, home=str(root / "home"), master="local[2]")
    try:
        while (job.status().stages[0].rows_out or 0) < backlog * ROWS:
            if job.wait(0.1):
                raise SystemExit(f"the job ended: {job.error}")
        began = time.monotonic()
        manifest = job.store.load(job.checkpoint())
        return time.monotonic() - began, manifest.rows_in_flight
    finally:
        job.stop()


class FromTheFirstStage(strobe.CheckpointConfig):
    """Only stages without inputs are told that a checkpoint begins."""

    def coordinator(self) -> CoordinatorSettings:
        return replace(super().coordinator(), everywhere=False)


WAYS: dict[str, strobe.CheckpointConfig] = {
    "unaligned, all told": strobe.CheckpointConfig(interval=None, mode="unaligned"),
    "unaligned, first told": FromTheFirstStage(interval=None, mode="unaligned"),
    "aligned": strobe.CheckpointConfig(interval=None),
}


def measure_chain(
    config: strobe.CheckpointConfig, depth: int, seconds: float, checkpoints: int, root: Path
) -> list[float]:
    """Seconds of each checkpoint."""
    shutil.rmtree(root, ignore_errors=True)
    pipeline = strobe.Pipeline("chain", checkpoint=config)

    def slow(batch: Any, batch_id: int) -> None:
        batch.count()
        time.sleep(seconds)

    pipeline.stage(uid="s0", to=strobe.ForeachBatchSink(slow))(
        lambda spark: spark.readStream.format("rate").option("rowsPerSecond", 100).load().select("value")
    )
    for number in range(1, depth):
        reads = f"s{number - 1}"
        pipeline.stage(uid=f"s{number}", reads=reads, to=strobe.ForeachBatchSink(slow), max_rows_per_batch=1)(
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
        return took
    finally:
        job.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backlog", type=int, default=30, help="batches")
    parser.add_argument("--batch-seconds", type=float, default=2.0)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "strobe-bench-unaligned")
    parser.add_argument("--depths", default="2,4,8", help="stages of each chain; empty: none")
    parser.add_argument("--checkpoints", type=int, default=9, help="of each chain")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.backlog, args.batch_seconds, args.depths, args.checkpoints = 6, 1.0, "2", 2
    for mode in ("unaligned", "aligned"):
        seconds, rows = measure(mode, args.backlog, args.batch_seconds, args.dir)
        batches = seconds / args.batch_seconds
        print(
            f"{mode:<10} {seconds:6.1f} s = {batches:.1f} batch times, {rows:,} rows in flight at the cut", flush=True
        )
    for depth in map(int, filter(None, args.depths.split(","))):
        for way, config in WAYS.items():
            took = measure_chain(config, depth, args.batch_seconds, args.checkpoints, args.dir)
            middle, longest = (of(took) / args.batch_seconds for of in (statistics.median, max))
            print(f"{depth} stages, {way:<22} {middle:5.1f} batch times, {longest:5.1f} at most", flush=True)
            if way == next(iter(WAYS)):
                what = f"{depth} stages, {way}, a checkpoint in batch times"
                figure("unaligned.py", f"{what}, median", middle, at_most=1)
                figure("unaligned.py", f"{what}, longest", longest, at_most=2)


if __name__ == "__main__":
    main()

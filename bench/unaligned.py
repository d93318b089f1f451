"""How long a checkpoint takes when one input has a backlog, unaligned and aligned.

    python bench/unaligned.py                   a backlog of 30 batches of 2 s
    python bench/unaligned.py --quick           6 batches of 1 s

A stage reads two channels. Its sink takes a fixed time per batch and it may read one commit of the fast channel at a
time, so the backlog there is worth so many batches. Then a checkpoint is asked for.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import strobe
from strobe.hosts.spark.job.job import start_job

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backlog", type=int, default=30, help="batches")
    parser.add_argument("--batch-seconds", type=float, default=2.0)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "strobe-bench-unaligned")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.backlog, args.batch_seconds = 6, 1.0
    for mode in ("unaligned", "aligned"):
        seconds, rows = measure(mode, args.backlog, args.batch_seconds, args.dir)
        batches = seconds / args.batch_seconds
        print(
            f"{mode:<10} {seconds:6.1f} s = {batches:.1f} batch times, {rows:,} rows in flight at the cut", flush=True
        )


if __name__ == "__main__":
    main()

"""How much a checkpoint stores when 1% of a large state has changed.

    python bench/incremental.py                 1 million keys, five checkpoints
    python bench/incremental.py --quick         20,000 keys

One stage counts rows per key in RocksDB. After all keys are in, a checkpoint stores the full state; then, again and
again, 1% of the keys change and another is taken. The figure is the new bytes of each as a share of the full state.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import strobe
from strobe.hosts.spark.job.job import Job, start_job


def put(directory: Path, name: str, keys: np.ndarray[Any, Any]) -> None:
    hidden = directory / f".{name}"
    pq.write_table(pa.table({"key": keys, "text": pa.array([f"row of key {k}" for k in keys])}), hidden)
    hidden.rename(directory / f"{name}.parquet")


def await_rows(job: Job, rows: int) -> None:
    """Until the counting stage has seen that many rows."""
    seen = 0
    while seen < rows:
        if job.wait(0.2):
            raise SystemExit(f"the job ended: {job.error}")
        source, state = job.status().stages
        seen = source.rows_out or 0 if state.lag_rows == 0 and state.state_rows else 0
    time.sleep(0.5)  # let the batch that read the last rows commit; a checkpoint waits for it anyway


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "strobe-bench-incremental")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.keys, args.rounds = 20_000, 2
    shutil.rmtree(args.dir, ignore_errors=True)
    data = args.dir / "in"
    data.mkdir(parents=True)

    pipeline = strobe.Pipeline("incremental", checkpoint=strobe.CheckpointConfig(interval=None, retained=3))
    pipeline.stage(uid="rows")(lambda spark: spark.readStream.schema("key BIGINT, text STRING").parquet(str(data)))
    pipeline.stage(uid="counts", reads="rows", output_mode="update", to=strobe.DeltaSink(str(args.dir / "out")))(
        lambda rows: rows.groupBy("key").agg({"text": "max", "key": "count"}).toDF("key", "text", "n")
    )
    all_keys = np.arange(args.keys, dtype=np.int64)
    put(data, "all", all_keys)
    job = start_job(pipeline, home=str(args.dir / "home"), master="local[2]")
    rng = np.random.default_rng(1)
    try:
        await_rows(job, args.keys)
        first = job.store.load(job.checkpoint())
        full = first.nodes[pipeline.order()[1]].bytes_total
        print(f"full state: {args.keys:,} keys, {full:,} bytes")
        rows, worst = args.keys, 0.0
        for number in range(args.rounds):
            put(data, f"change-{number}", rng.choice(all_keys, args.keys // 100, replace=False))
            rows += args.keys // 100
            await_rows(job, rows)
            manifest = job.store.load(job.checkpoint())
            new = manifest.nodes[pipeline.order()[1]].bytes_new
            worst = max(worst, new / full)
            print(f"1% of the keys changed: {new:,} bytes new, {new / full:.2%} of the full state")
        print(f"at most {worst:.2%} of the full state")
    finally:
        job.stop()


if __name__ == "__main__":
    main()

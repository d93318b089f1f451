"""The ledger on CSV files, a checkpoint every second: Strobe beside Flink SQL, on the same files.

    python bench/flink.py                       10 million transfers in 100 files, three rounds
    python bench/flink.py --files 20 --rows 500000
                                                the same in large files: Strobe's batches take five times as long
    python bench/flink.py --per-batch 1         Strobe reads one file in a batch: shorter checkpoints, fewer transfers
    python bench/flink.py --quick               a small one, to see that it works

Both sides run alternately, each in a fresh process: two postings for each transfer, and for each account its balance,
kept in RocksDB with incremental checkpoints, on two cores. Flink throws the balances away. Strobe reads two files a
batch and writes each change of a balance into a Delta table, which is compared with DuckDB's answer. The figures are
transfers per second, processor time with the start of each side, and how long the checkpoints took: Flink's by its own
log, Strobe's by its history.

Flink is fetched the first time, 310 MB, from where `pip` gets its packages; see `flink.lock` for the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import ledger
from bench._chain import Metered
from bench._report import figure
from bench._sides import percentile, run_side
from strobe.hosts.spark.jvm.jars import cache_directory, fetched
from strobe.hosts.spark.jvm.java import find_java

FLINK = "apache-flink-libraries==2.1.0"
SHA256 = "a8c12b411eefd45a33e54579ff65c29faa09e96a670f3c2c39ddeca35d8196c6"
DDL = "id BIGINT, src INT, dst INT, amount BIGINT"
SIDES = ("strobe", "flink")
OPENED = ("java.util", "java.lang", "java.time")
LOG = """
rootLogger.level = INFO
rootLogger.appenderRef.file.ref = F
appender.file.name = F
appender.file.type = FILE
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{UNIX_MILLIS}} %m%n
"""
SQL = """
SET 'execution.target' = 'local';
SET 'execution.runtime-mode' = 'streaming';
SET 'table.dml-sync' = 'true';
SET 'parallelism.default' = '2';
SET 'state.backend.type' = 'rocksdb';
SET 'execution.checkpointing.incremental' = 'true';
SET 'execution.checkpointing.interval' = '1 s';
SET 'execution.checkpointing.dir' = 'file://{work}/checkpoints';
CREATE TABLE transfers ({ddl}) WITH ('connector' = 'filesystem', 'path' = 'file://{data}', 'format' = 'csv');
CREATE TABLE balances (account INT, balance BIGINT, n BIGINT) WITH ('connector' = 'blackhole');
INSERT INTO balances SELECT account, SUM(delta), COUNT(*)
FROM (SELECT src AS account, -amount AS delta FROM transfers UNION ALL SELECT dst, amount FROM transfers) AS postings
GROUP BY account;
"""
COMPLETE = re.compile(r"Completed checkpoint \d+ .*checkpointDuration=(\d+) ms")
STATE = re.compile(r"^(\d+) Job .* switched from state \w+ to (RUNNING|FINISHED)\.$", re.MULTILINE)


def write_csv(parquet: Path, directory: Path) -> None:
    """The ledger's transfers, file by file. Files that are already there are kept."""
    if directory.is_dir():
        return
    fresh = directory.with_name(directory.name + ".new")
    fresh.mkdir(parents=True, exist_ok=True)
    with duckdb.connect() as db:
        for file in sorted(parquet.glob("*.parquet")):
            rows = f"select id, src, dst, amount from '{file}'"
            db.execute(f"copy ({rows}) to '{fresh / file.stem}.csv' (format csv, header false)")
    fresh.rename(directory)


def libraries() -> list[Path]:
    """Flink's own files, fetched once."""
    place = cache_directory() / FLINK.replace("==", "-")
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        print(f"Fetching {FLINK}, 310 MB.", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
            wanted = Path(scratch, "wanted.txt")
            wanted.write_text(f"{FLINK} --hash=sha256:{SHA256}\n")
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
            subprocess.run([*pip, "--require-hashes", "-r", str(wanted), "-d", scratch], check=True)
            unpacked = Path(scratch, "unpacked")
            unpacked.mkdir()
            with tarfile.open(next(Path(scratch).glob("*.tar.gz"))) as archive:
                for member in archive:
                    if member.isfile() and re.search(r"/deps/(lib|opt)/[^/]+\.jar$", member.name):
                        member.name = Path(member.name).name
                        archive.extract(member, unpacked, filter="data")
            unpacked.rename(place)
    return [*sorted(place.glob("*.jar")), *fetched(Path(__file__).with_name("flink.lock"))]


def run_flink(data: Path, work: Path) -> dict[str, Any]:
    settings, log = work / "conf", work / "flink.log"
    settings.mkdir()
    (settings / "config.yaml").write_text("rest.address: 127.0.0.1\nrest.bind-address: 127.0.0.1\nrest.port: 0\n")
    (work / "log4j2.properties").write_text(LOG.format(log=log))
    (work / "ledger.sql").write_text(SQL.format(work=work, data=data, ddl=DDL))
    command = [
        str(find_java() / "bin" / "java"), "-Xmx4g", f"-Dlog4j.configurationFile={work}/log4j2.properties",
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED),
        "-cp", ":".join(map(str, libraries())),
        "org.apache.flink.table.client.SqlClient", "embedded", "-f", "ledger.sql",
    ]  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command,
        env={**os.environ, "FLINK_CONF_DIR": str(settings)},
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = log.read_text() if log.exists() else ""
    times = {state: int(when) / 1000 for when, state in STATE.findall(said)}
    if "FINISHED" not in times:
        raise SystemExit(f"Flink did not finish:\n{(done.stdout + done.stderr)[-3000:]}\n{said[-2000:]}")
    return {
        "seconds": times["FINISHED"] - times["RUNNING"],
        "processor": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "durations": [int(took) / 1000 for took in COMPLETE.findall(said)],
    }


def run_strobe(data: Path, work: Path, parquet: Path, per_batch: int) -> dict[str, Any]:
    import strobe
    from strobe.hosts.spark.job.job import start_job

    config = strobe.CheckpointConfig(interval=1.0, retained=1)
    pipeline = strobe.Pipeline("ledger", checkpoint=config, partitions=2)

    @pipeline.stage(uid="postings", trigger={"availableNow": True})
    def postings(spark: Any) -> Any:
        files = spark.readStream.schema(DDL).option("maxFilesPerTrigger", per_batch)
        return ledger.postings(files.csv(str(data)))

    @pipeline.stage(uid="balances", reads="postings", output_mode="update", to=strobe.DeltaSink(str(work / "balances")))
    def balances(postings: Any) -> Any:
        return ledger.balances(postings)

    metered = Metered()
    job = start_job(pipeline, home=str(work / "home"), master="local[2]")
    began = time.monotonic()
    job.wait()
    seconds = time.monotonic() - began
    assert job.state is strobe.JobState.FINISHED, job.error
    processor = metered.seconds()
    ledger.check(parquet, work / "balances", delta=True)
    complete = [c for c in job.status().checkpoints if c.status == "complete"]
    return {"seconds": seconds, "processor": processor, "durations": [c.duration_ms / 1000 for c in complete]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--per-batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "strobe-bench-flink")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        args.files, args.rows, args.rounds = 8, 20_000, 1
    shape = args.dir / f"{args.files}x{args.rows}"
    parquet, data = shape / "parquet", shape / "csv"
    if args.side:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if args.side == "flink":
            result = run_flink(data, args.work)
        else:
            result = run_strobe(data, args.work, parquet, args.per_batch)
        print(json.dumps(result))
        return
    ledger.write_data(parquet, args.files, args.rows)
    write_csv(parquet, data)
    libraries()
    shared = ("--files", args.files, "--rows", args.rows, "--per-batch", args.per_batch, "--dir", args.dir.absolute())
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for round_ in range(args.rounds):
        for side in SIDES if round_ % 2 == 0 else SIDES[::-1]:
            result = run_side(__file__, side, args.dir.absolute() / "work", *shared)
            found[side].append(result)
            took = result["durations"]
            print(
                f"round {round_ + 1}  {side:<7} {args.files * args.rows / result['seconds']:>10,.0f} transfers/s, "
                f"{result['processor']:.0f} s of processor, {len(took)} checkpoints in {result['seconds']:.0f} s: "
                f"p50 {percentile(took, 0.5):.2f} s, p99 {percentile(took, 0.99):.2f} s",
                flush=True,
            )
    ours, theirs = (found[side] for side in SIDES)
    rate = _median(theirs, "seconds") / _median(ours, "seconds")
    cost = _median(theirs, "processor") / _median(ours, "processor")
    took = _duration(ours) / _duration(theirs)
    print(f"\nstrobe / flink: {rate:.2f} in transfers a second, {cost:.2f} in processor time (above 1 is better)")
    print(f"median duration of a checkpoint, strobe / flink: {took:.2f} (below 1 is better)")
    figure("flink.py", "median duration of a checkpoint / Flink's, ledger on CSV", took, at_most=1.0)


def _median(results: list[dict[str, Any]], what: str) -> float:
    return statistics.median(float(result[what]) for result in results)


def _duration(results: list[dict[str, Any]]) -> float:
    return statistics.median(float(took) for result in results for took in result["durations"])


if __name__ == "__main__":
    main()

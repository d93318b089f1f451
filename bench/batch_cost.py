"""What one batch does and costs: the ledger, batch by batch, under Strobe and as two queries chained by hand.

    python bench/batch_cost.py                  a million transfers a batch
    python bench/batch_cost.py --rows 10000     small batches: 20,000 transfers each
    python bench/batch_cost.py --quick          a small one, to see that it works

Two files are put into the source's directory; when the balances they make are in the sink, the next two follow. So all
sides run the same batches, one of each query for each pair of files. The figures are for one batch: they are counted
after a warm-up and divided by the number of batches. Each side runs twice in processes of its own: once to measure
processor time, by thread and process, and to ask Spark what it ran; once under strace, to count system calls. `plain`
has the same file manager for its checkpoints as Strobe.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench._chain import plain_session
from bench._report import figure
from bench.ledger import DDL, ROCKSDB, balances, postings, write_data

SIDES = ("plain", "strobe", "strobe-chained")
CALLS = "openat,creat,rename,renameat,renameat2,link,linkat,unlink,unlinkat,fsync,fdatasync,mkdir,mkdirat,execve"
_TICKS = os.sysconf("SC_CLK_TCK")
_FILE = re.compile(r'"((?:[^"\\]|\\.)*)"')
# What a thread of the JVM does, by the first 15 letters of its name.
_THREADS = (
    ("Executor task", "tasks"),
    ("stream executio", "planning"),
    ("C1 Compiler", "Java's compiler"),
    ("C2 Compiler", "Java's compiler"),
    ("G1 ", "garbage collection"),
    ("GC Thread", "garbage collection"),
    ("VM Thread", "garbage collection"),
)


class Calls:
    """Calls between this process and the JVM, by py4j, of all threads except the one that measures."""

    def __init__(self) -> None:
        from py4j import clientserver, java_gateway

        self.out = self.back = 0
        self._measuring = threading.get_ident()
        for owner in (java_gateway.GatewayConnection, clientserver.ClientServerConnection):
            self._count(owner, "send_command", "out")
        for owner, name in ((java_gateway.CallbackConnection, "_call_proxy"),):
            self._count(owner, name, "back")
        self._count(clientserver.ClientServerConnection, "_call_proxy", "back")

    def _count(self, owner: Any, name: str, which: str) -> None:
        original = getattr(owner, name)

        def counted(this: Any, *given: Any, **named: Any) -> Any:
            if threading.get_ident() != self._measuring:
                setattr(self, which, getattr(self, which) + 1)
            return original(this, *given, **named)

        setattr(owner, name, counted)


def counters(spark: Any, calls: Calls) -> dict[str, float]:
    """All that has been spent and done until now."""
    jvm = spark._jvm
    found: dict[str, float] = collections.defaultdict(float)
    for who, seconds in _processor().items():
        found[f"processor time, ms: {who}"] = 1000 * seconds
    found["processor time, ms"] = sum(v for k, v in found.items() if k.startswith("processor time"))
    jobs = spark._jsc.sc().statusStore().jobsList(None)
    tasks = [jobs.apply(n).numTasks() for n in range(jobs.size())]
    found["Spark jobs"], found["Spark tasks"] = len(tasks), sum(tasks)
    metrics = jvm.org.apache.spark.metrics.source.CodegenMetrics
    found["classes that Spark generated and compiled"] = metrics.METRIC_COMPILATION_TIME().getCount()
    found["calls to the JVM (py4j)"], found["calls from the JVM (py4j)"] = calls.out, calls.back
    return found


def _processor() -> dict[str, float]:
    """Seconds of processor time of this process and all below it, by process and role."""
    found: dict[str, float] = collections.defaultdict(float)
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int(_stat(entry)[1])
    family = [os.getpid()]
    for pid in family:
        family += [child for child, parent in parents.items() if parent == pid]
    for pid in family:
        place = Path(f"/proc/{pid}")
        with contextlib.suppress(OSError):
            words = (place / "cmdline").read_bytes().split(b"\0")
            if not words[0].endswith(b"java"):
                mine = pid == os.getpid()
                spent = sum(int(n) for n in _stat(place)[11:15]) / _TICKS
                # This thread only checks whether the batch is done.
                found["the driver's Python" if mine else "other Pythons"] += spent - (time.thread_time() if mine else 0)
                continue
            total = sum(int(n) for n in _stat(place)[11:15]) / _TICKS
            for thread in (place / "task").iterdir():
                name = (thread / "comm").read_text().strip()
                spent = sum(int(n) for n in _stat(thread)[11:13]) / _TICKS
                role = next((role for prefix, role in _THREADS if name.startswith(prefix.strip())), None)
                if role is not None:
                    found[f"the JVM's {role}" if role != "Java's compiler" else role] += spent
                    total -= spent
            found["the JVM's other threads"] += total
    return found


def _stat(place: Path) -> list[str]:
    return (place / "stat").read_text().rpartition(")")[2].split()


@contextlib.contextmanager
def running(side: str, incoming: Path, work: Path) -> Iterator[tuple[Any, Path, Callable[[], int]]]:
    """The session, the checkpoint of the last query, and how many batches are in its sink."""
    if side == "plain":
        with _plain(incoming, work) as (spark, checkpoint):
            yield spark, checkpoint, lambda: len(list((work / "balances").glob("*/_SUCCESS")))
        return
    import strobe
    from strobe.hosts.spark.job.job import start_job
    from strobe.hosts.spark.jvm.session import spark_session

    config = strobe.CheckpointConfig(interval=1.0, retained=1)
    pipeline = strobe.Pipeline("bench", checkpoint=config, partitions=2, chain=side == "strobe-chained")
    pipeline.stage(uid="postings")(lambda spark: postings(_transfers(spark, incoming)))
    pipeline.stage(uid="balances", reads="postings", output_mode="update", to=strobe.DeltaSink(str(work / "balances")))(
        balances
    )
    spark = spark_session("bench", "local[2]")
    job = start_job(pipeline, home=str(work / "home"), spark=spark)
    try:
        for runner in job.runners.values():
            runner.await_running()
        place = job.home.path(job.home.layout.stage_checkpoint("balances", 1))  # type: ignore[arg-type]
        yield spark, place, lambda: len(list((work / "balances").glob("data/*/*")))
    finally:
        job.stop()
        job.wait()


@contextlib.contextmanager
def _plain(incoming: Path, work: Path) -> Iterator[tuple[Any, Path]]:
    spark = plain_session(
        {
            "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        }
    )
    channel = work / "channel"
    channel.mkdir()
    first = (
        postings(_transfers(spark, incoming)).writeStream.format("parquet").option("path", str(channel))
        .option("checkpointLocation", str(work / "c1")).start()
    )  # fmt: skip
    rows = spark.readStream.schema("id BIGINT, account INT, delta BIGINT").parquet(str(channel))

    def write(batch: Any, batch_id: int) -> None:
        batch.write.mode("overwrite").parquet(str(work / "balances" / str(batch_id)))

    second = (
        balances(rows).writeStream.outputMode("update").foreachBatch(write)
        .option("checkpointLocation", str(work / "c2")).start()
    )  # fmt: skip
    try:
        yield spark, work / "c2"
    finally:
        first.stop()
        second.stop()


def _transfers(spark: Any, incoming: Path) -> Any:
    return spark.readStream.schema(DDL).option("maxFilesPerTrigger", 2).parquet(str(incoming))


def run_side(side: str, data: Path, work: Path, warm: int, counted: int) -> dict[str, Any]:
    files = sorted(data.glob("*.parquet"))
    incoming = work / "in"
    incoming.mkdir()
    calls = Calls()
    with running(side, incoming, work) as (spark, checkpoint, in_sink):

        def commits() -> int:
            with contextlib.suppress(FileNotFoundError):
                return sum(entry.name.isdigit() for entry in os.scandir(checkpoint / "commits"))
            return 0

        before: dict[str, float] = {}
        times = []
        for batch in range(warm + counted):
            if batch == warm:
                time.sleep(0.5)
                before, began = counters(spark, calls), time.time()
            had, done, start = commits(), in_sink(), time.perf_counter()
            for n in range(2):
                # The files are used again and again: several batches read the same rows. Hidden until both are there.
                target = incoming / f"{batch:05d}-{n}.parquet"
                os.link(files[(2 * batch + n) % len(files)], target.with_name(f".{target.name}"))
            for n in range(2):
                (incoming / f".{batch:05d}-{n}.parquet").rename(incoming / f"{batch:05d}-{n}.parquet")
            while in_sink() <= done or commits() <= had:
                time.sleep(0.01)
            times.append(time.perf_counter() - start)
        ended = time.time()
        after = counters(spark, calls)
    spent = {name: (after[name] - before.get(name, 0)) / counted for name in after}
    return {"spent": spent, "from": began, "to": ended, "seconds": sorted(times[warm:])[counted // 2]}


def in_a_process(side: str, data: Path, work: Path, warm: int, counted: int, trace: Path | None) -> dict[str, Any]:
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    command = [sys.executable, str(Path(__file__).absolute()), "--side", side, "--data", str(data), "--work", str(work)]
    command += ["--warm", str(warm), "--batches", str(counted)]
    if trace is not None:
        command = ["strace", "-f", "--seccomp-bpf", "-qq", "-ttt", "-e", f"trace={CALLS}", "-o", str(trace), *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=work)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def system_calls(trace: Path, began: float, ended: float) -> dict[str, int]:
    """System calls in between, by kind, without those of the thread that measures: it is the first."""
    found: dict[str, int] = collections.Counter()
    lines = trace.read_text(errors="replace").splitlines()
    measuring = lines[0].split(None, 1)[0]
    for line in lines:
        who, moment, said = line.split(None, 2)
        if who == measuring or not began <= float(moment) <= ended:
            continue
        if "execve" in said:  # tried in one directory after the other until one has the program
            found["programs started"] += said.endswith(" = 0")
            continue
        if "resumed>" in said or said.startswith(("+++", "---")):
            continue
        name = said.partition("(")[0]
        path = m[1] if (m := _FILE.search(said)) else ""
        failed = " = -1 " in said
        if name in ("openat", "creat"):
            writing = "O_WRONLY" in said or "O_RDWR" in said
            if failed or "O_DIRECTORY" in said or path.startswith(("/proc", "/sys", "/dev")):
                found["directories listed"] += "O_DIRECTORY" in said and not path.startswith("/proc")
            elif writing:
                found["files opened to write"] += 1
                found["… of them .crc"] += path.endswith(".crc")
            else:
                found["files opened to read"] += 1
                found["… of them Parquet"] += path.endswith(".parquet")
        elif name in ("fsync", "fdatasync"):
            found["fsync"] += 1
        elif name.startswith("mkdir"):
            found["directories made"] += not failed
        elif name.startswith(("rename", "link")):
            found["renames and links"] += not failed
        elif name.startswith("unlink"):
            found["files deleted"] += not failed
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000, help="of a file; a batch reads two")
    parser.add_argument("--warm", type=int, default=10, help="batches that are not counted")
    parser.add_argument("--batches", type=int, default=10, help="batches that are counted")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--no-trace", action="store_true", help="without the runs under strace")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "strobe-bench")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        print(json.dumps(run_side(args.side, args.data, args.work, args.warm, args.batches)), flush=True)
        return
    if args.quick:
        args.rows, args.warm, args.batches = 10_000, 3, 3
    data = args.dir / "data-batch-cost"
    write_data(data, 4, args.rows)
    sides = args.sides.split(",")
    table: dict[str, dict[str, float]] = {}
    for side in sides:
        print(f"{side} …", file=sys.stderr, flush=True)
        measured = in_a_process(side, data, args.dir / "work", args.warm, args.batches, None)
        table[side] = {"seconds until the batch is in the sink": measured["seconds"], **measured["spent"]}
        if not args.no_trace and shutil.which("strace"):
            trace = args.dir / "trace"
            traced = in_a_process(side, data, args.dir / "work", args.warm, args.batches, trace)
            for name, count in system_calls(trace, traced["from"], traced["to"]).items():
                table[side][name] = count / args.batches
    print(f"a batch of {2 * args.rows:,} transfers, mean of {args.batches} after {args.warm}")
    print(f"{'':<46}" + "".join(f"{side:>16}" for side in sides))
    for name in dict.fromkeys(name for side in sides for name in sorted(table[side])):
        print(f"{name:<46}" + "".join(f"{table[side].get(name, 0):>16,.2f}" for side in sides))
    if "plain" in table:
        for side in sides:
            if side != "plain":
                found = table["plain"]["processor time, ms"] / table[side]["processor time, ms"]
                figure("batch_cost.py", f"plain / {side}, processor time of a batch", found, at_least=1.0)


if __name__ == "__main__":
    main()

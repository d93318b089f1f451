"""What a channel costs.

    python bench/channel.py             two queries joined by a channel, against the same two joined by a directory of
                                        Parquet files (Spark's file sink and file source); interleaved, as a ratio
    python bench/channel.py --commits   one commit of each kind, one question at the gate
    python bench/channel.py --quick     the first of these, small
    python bench/channel.py --codecs    ways to write Parquet: processor time to write and to read, and size

The queries are a small ledger: each transfer becomes two postings (stateless), postings become a balance per account
(stateful). Both ways share the session, its settings, the input and the number of rows per batch, so that only the
channel differs. The clock runs from the moment when the input appears until the consumer has taken in every posting.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import LongType, StructField, StructType

from strobe.hosts.spark.channel.gate import Gate, GateClient
from strobe.hosts.spark.channel.parquet import write_files
from strobe.hosts.spark.channel.source import read_channel
from strobe.hosts.spark.channel.writer import DATA, ChannelLog, ChannelWriter, DataFile
from strobe.hosts.spark.jvm.session import spark_session
from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId, Timeline

TRANSFERS = "id long, src long, dst long, amount decimal(18,2), ts timestamp"
ACCOUNTS = 100_000


class Everything:
    """A gate handler that lets everyone read everything, and answers when there is something new."""

    def __init__(self, log: ChannelLog) -> None:
        self._log = log

    def latest(self, stage: NodeId, channel: ChannelId, start: int, reader: str) -> int:
        seen, deadline = max(start, self._log.head), time.monotonic() + 0.05
        while self._log.refresh() <= seen and time.monotonic() < deadline:
            time.sleep(0.005)
        return self._log.end

    def initial(self, stage: NodeId, channel: ChannelId) -> int:
        return 0

    def available(self, stage: NodeId, channel: ChannelId) -> int:
        return self._log.end

    def files(self, stage: NodeId, channel: ChannelId, start: int, end: int) -> list[DataFile]:
        return [f for c in self._log.commits(start, end) for f in c.files]

    def committed(self, stage: NodeId, channel: ChannelId, end: int) -> None: ...


def make_transfers(spark: SparkSession, place: Path, files: int, rows: int) -> None:
    ids = spark.range(0, files * rows, 1, files)
    transfers = ids.select(
        "id",
        F.pmod(F.xxhash64("id", F.lit(1)), F.lit(ACCOUNTS)).alias("src"),
        F.pmod(F.xxhash64("id", F.lit(2)), F.lit(ACCOUNTS)).alias("dst"),
        (F.pmod(F.xxhash64("id", F.lit(3)), F.lit(100_000)) / 100).cast("decimal(18,2)").alias("amount"),
        F.timestamp_millis(F.lit(1_700_000_000_000) + F.col("id")).alias("ts"),
    )
    transfers.write.parquet(str(place))


def postings(transfers: DataFrame) -> DataFrame:
    legs = F.array(
        F.struct(F.col("src").alias("account"), (-F.col("amount")).alias("amount")),
        F.struct(F.col("dst").alias("account"), F.col("amount").alias("amount")),
    )
    return transfers.select("id", "ts", F.explode(legs).alias("leg")).select("id", "ts", "leg.account", "leg.amount")


def balances(posted: DataFrame) -> DataFrame:
    return posted.groupBy("account").agg(F.sum("amount").alias("balance"))


def source(spark: SparkSession, place: Path, files_per_batch: int) -> DataFrame:
    return spark.readStream.schema(TRANSFERS).option("maxFilesPerTrigger", files_per_batch).parquet(str(place))


def consume(posted: DataFrame, base: Path) -> StreamingQuery:
    def settle(batch: DataFrame, _: int) -> None:
        batch.write.format("noop").mode("overwrite").save()

    return start(balances(posted), base / "balances", settle, "update")


def start(df: DataFrame, checkpoint: Path, batch: Callable[[DataFrame, int], None], mode: str) -> StreamingQuery:
    writer = df.writeStream.outputMode(mode).foreachBatch(batch).option("checkpointLocation", str(checkpoint))
    return writer.trigger(processingTime="0 seconds").start()


@contextmanager
def by_channel(spark: SparkSession, base: Path, files_per_batch: int) -> Iterator[StreamingQuery]:
    produced = postings(source(spark, base / "in", files_per_batch))
    writer = open_writer(base / "postings", produced.schema)
    with Gate(Everything(writer.log)) as gate:
        posted = read_channel(
            spark,
            path=writer.path,
            schema=writer.schema,
            stage=NodeId("balances"),
            channel=ChannelId("postings"),
            gate=gate.address,
        )
        consumer = consume(posted, base)

        def append(batch: DataFrame, batch_id: int) -> None:
            writer.append(write_files(batch, batch_id, writer), batch_id)

        producer = start(produced, base / "producer", append, "append")
        yield consumer
        stop(producer, consumer)


@contextmanager
def by_hand(spark: SparkSession, base: Path, files_per_batch: int) -> Iterator[StreamingQuery]:
    produced = postings(source(spark, base / "in", files_per_batch))
    place = base / "postings"
    place.mkdir()
    consumer = consume(spark.readStream.schema(produced.schema).parquet(str(place)), base)
    producer = (
        produced.writeStream.format("parquet")
        .option("checkpointLocation", str(base / "producer"))
        .trigger(processingTime="0 seconds")
        .start(str(place))
    )
    yield consumer
    stop(producer, consumer)


def stop(*queries: StreamingQuery) -> None:
    for query in queries:
        query.stop()


def taken_in(query: StreamingQuery) -> int:
    return sum(p["numInputRows"] for p in query.recentProgress)


Way = Callable[[SparkSession, Path, int], AbstractContextManager[StreamingQuery]]


@dataclass(frozen=True)
class Measured:
    rows_per_second: float
    cpu_seconds: float


def run(way: Way, spark: SparkSession, transfers: Path, rows: int, files_per_batch: int) -> Measured:
    base = Path(tempfile.mkdtemp(prefix="bench-channel-"))
    (base / "in").mkdir()
    try:
        with way(spark, base, files_per_batch) as consumer:
            while consumer.status["message"].startswith("Initializing"):
                time.sleep(0.05)
            began, cpu = time.perf_counter(), family_cpu()
            for file in sorted(transfers.glob("*.parquet")):
                os.link(file, base / "in" / file.name)
            while (done := taken_in(consumer)) < 2 * rows:
                problem = consumer.exception()
                if problem is not None:
                    raise problem
                time.sleep(0.02)
            measured = Measured(rows / (time.perf_counter() - began), family_cpu() - cpu)
        assert done == 2 * rows, f"{done} postings came out of {2 * rows}"
        return measured
    finally:
        shutil.rmtree(base, ignore_errors=True)


def compare(spark: SparkSession, *, files: int, rows_per_file: int, files_per_batch: int, rounds: int) -> None:
    scratch = Path(tempfile.mkdtemp(prefix="bench-channel-"))
    try:
        make_transfers(spark, scratch / "transfers", files, rows_per_file)
        rows = files * rows_per_file
        print(f"{rows:,} transfers, {files} files, {files_per_batch} files a batch, {rounds} rounds after a warm-up")
        speed, cost = [], []
        for n in range(rounds + 1):
            # The side that runs first changes from round to round: the load on the machine changes, too.
            order: list[Way] = [by_channel, by_hand] if n % 2 else [by_hand, by_channel]
            result = {way: run(way, spark, scratch / "transfers", rows, files_per_batch) for way in order}
            channel, hand = result[by_channel], result[by_hand]
            if n:
                speed.append(channel.rows_per_second / hand.rows_per_second)
                cost.append(channel.cpu_seconds / hand.cpu_seconds)
                print(
                    f"  channel {channel.rows_per_second:>8,.0f}/s {channel.cpu_seconds:>5.1f} s of processor time   "
                    f"by hand {hand.rows_per_second:>8,.0f}/s {hand.cpu_seconds:>5.1f} s   "
                    f"ratio {speed[-1]:.2f}, {cost[-1]:.2f}",
                    flush=True,
                )
        print(f"speed, channel / by hand: median {statistics.median(speed):.2f}, {min(speed):.2f} to {max(speed):.2f}")
        print(f"processor time, likewise: median {statistics.median(cost):.2f}, {min(cost):.2f} to {max(cost):.2f}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def family_cpu() -> float:
    """Seconds of processor time of this process, its JVM and their workers so far."""
    ticks, parent = dict[int, int](), dict[int, int]()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parent[int(entry)] = int(fields[1])
            ticks[int(entry)] = sum(int(f) for f in fields[11:15])
    family, grown = {os.getpid()}, True
    while grown:
        more = {pid for pid, above in parent.items() if above in family} - family
        family |= more
        grown = bool(more)
    return sum(ticks[pid] for pid in family) / os.sysconf("SC_CLK_TCK")


def open_writer(path: Path, schema: StructType) -> ChannelWriter:
    return ChannelWriter(
        path, schema, job="bench", producer=NodeId("postings"), timeline=Timeline(1), incarnation=Incarnation(1)
    )


def commits(count: int) -> None:
    base = Path(tempfile.mkdtemp(prefix="bench-channel-"))
    try:
        writer = open_writer(base / "c", StructType([StructField("n", LongType())]))
        place = base / "c" / DATA / "1" / "0"
        place.mkdir(parents=True)
        (place / "part-0.parquet").write_bytes(b"x" * 4096)
        file = DataFile(f"{DATA}/1/0/part-0.parquet", 1, 4096)
        for part in range(4):
            span = range(part * count // 4, (part + 1) * count // 4)
            print(f"commits {span.start:>6}–{span.stop:<6}", end="")
            report("batch", [timed(lambda n=n: writer.append([file, file], n)) for n in span])  # type: ignore[misc]
            report("barrier", [timed(lambda n=n: writer.place_barrier(SnapshotId(n + 1))) for n in span])  # type: ignore[misc]
            report("sync", [timed(lambda: writer.sync(writer.log.head))])
            print()
        began = time.perf_counter()
        log = ChannelLog(base / "c")
        print(f"index of {log.head} commits built in {1e3 * (time.perf_counter() - began):.0f} ms")
        with Gate(Everything(log)) as gate:
            client = GateClient(gate.address, NodeId("q"), ChannelId("c"))
            print("gate   ", end="")
            report("question", [timed(client.available) for _ in range(2000)])
            report("files of 100 commits", [timed(lambda: client.files(log.head - 100, log.head)) for _ in range(200)])
            print()
        writer.close()
    finally:
        shutil.rmtree(base, ignore_errors=True)


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return 1e3 * (time.perf_counter() - began)


def report(what: str, millis: list[float]) -> None:
    print(f"   {what} {statistics.median(millis):.2f} ms (worst {max(millis):.1f})", end="")


CODECS: dict[str, dict[str, str]] = {
    "Spark's default (snappy)": {"compression": "snappy"},
    "snappy, v2 pages": {"compression": "snappy", "parquet.writer.version": "v2"},
    "zstd, v2 pages": {"compression": "zstd", "parquet.writer.version": "v2"},
    "lz4_raw": {"compression": "lz4_raw"},
    "lz4_raw, v2 pages": {"compression": "lz4_raw", "parquet.writer.version": "v2"},
    "lz4_raw, v2 pages, no statistics": {
        "compression": "lz4_raw",
        "parquet.writer.version": "v2",
        "parquet.column.statistics.enabled": "false",
    },
    "none, v2 pages": {"compression": "none", "parquet.writer.version": "v2"},
    "lz4_raw, v2 pages, no dictionaries": {
        "compression": "lz4_raw",
        "parquet.writer.version": "v2",
        "parquet.enable.dictionary": "false",
    },
}


def codecs(spark: SparkSession, rows: int, rounds: int) -> None:
    scratch = Path(tempfile.mkdtemp(prefix="bench-channel-"))
    try:
        make_transfers(spark, scratch / "transfers", 2, rows // 2)
        cached = postings(spark.read.schema(TRANSFERS).parquet(str(scratch / "transfers"))).persist()
        cached.count()
        written: dict[str, list[float]] = {name: [] for name in CODECS}
        read: dict[str, list[float]] = {name: [] for name in CODECS}
        size: dict[str, int] = {}
        threads = spark._jvm.java.lang.management.ManagementFactory.getOperatingSystemMXBean()  # type: ignore[union-attr]
        for n in range(rounds + 3):
            for name, options in CODECS.items():
                place = scratch / "out"
                before = threads.getProcessCpuTime()
                cached.write.options(**options).parquet(str(place))
                write_ms = (threads.getProcessCpuTime() - before) / 1e6
                files = sorted(place.glob("*.parquet"))
                before = _my_cpu()
                for file in files:
                    with pq.ParquetFile(file, memory_map=True) as table:
                        for _ in table.iter_batches(64 * 1024, use_threads=False):
                            pass
                if n >= 3:
                    written[name].append(write_ms)
                    read[name].append(_my_cpu() - before)
                size[name] = sum(f.stat().st_size for f in files)
                shutil.rmtree(place)
        print(f"{2 * rows:,} postings, processor time, median of {rounds}")
        for name in CODECS:
            print(
                f"  {name:<34} write {statistics.median(written[name]):>6.0f} ms   "
                f"read {statistics.median(read[name]):>5.0f} ms   {size[name] / 1e6:>6.1f} MB"
            )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _my_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return 1e3 * (usage.ru_utime + usage.ru_stime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", action="store_true")
    parser.add_argument("--codecs", action="store_true")
    parser.add_argument("--files", type=int, default=12)
    parser.add_argument("--rows-per-file", type=int, default=250_000)
    parser.add_argument("--files-per-batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a small one, to see that it works")
    args = parser.parse_args()
    if args.quick:
        args.files, args.rows_per_file, args.rounds = 4, 10_000, 1
    if args.commits:
        commits(4000)
        return
    spark = spark_session("bench-channel", "local[2]")
    if args.codecs:
        codecs(spark, 500_000, args.rounds)
    else:
        compare(
            spark,
            files=args.files,
            rows_per_file=args.rows_per_file,
            files_per_batch=args.files_per_batch,
            rounds=args.rounds,
        )
    spark.stop()


if __name__ == "__main__":
    main()

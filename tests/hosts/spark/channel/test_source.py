"""Reading a channel through Spark: where batches end, what a crash repeats, what happens when the driver goes."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from strobe.hosts.spark.channel.gate import Gate, GateAddress, GateClient, GateClosed
from strobe.hosts.spark.channel.parquet import write_batch
from strobe.hosts.spark.channel.source import balance, read_channel
from strobe.hosts.spark.channel.writer import ChannelLog, ChannelWriter, DataFile
from strobe.model.errors import Failed
from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId, Timeline
from tests.support.processes import alive, family
from tests.support.waiting import eventually

Asked = tuple[object, ...]


class Recorder:
    """Lets everyone read up to `limits`, where given, else to the end of the channel; remembers what it was asked."""

    def __init__(self, logs: dict[str, ChannelLog]) -> None:
        self.logs = logs
        self.limits: dict[str, int] = {}
        self.asked: list[Asked] = []
        self.refuse: str | None = None

    def latest(self, stage: NodeId, channel: ChannelId, start: int, reader: str) -> int:
        self.asked.append(("latest", channel, start))
        if self.refuse:
            raise Failed(self.refuse)
        self.logs[channel].refresh()
        return self.limits.get(channel, self.logs[channel].end)

    def initial(self, stage: NodeId, channel: ChannelId) -> int:
        return 0

    def available(self, stage: NodeId, channel: ChannelId) -> int:
        return self.logs[channel].end

    def files(self, stage: NodeId, channel: ChannelId, start: int, end: int) -> list[DataFile]:
        self.asked.append(("files", channel, start, end))
        return [f for c in self.logs[channel].commits(start, end) for f in c.files]

    def committed(self, stage: NodeId, channel: ChannelId, end: int) -> None:
        self.asked.append(("committed", channel, end))

    def kinds(self, *names: str) -> list[Asked]:
        return [a for a in self.asked if a[0] in names]


class World:
    """Two channels, a gate, and a query that remembers its batches."""

    def __init__(self, spark: SparkSession, base: Path) -> None:
        self.spark = spark
        self.base = base
        self.writers = {c: self._writer(c) for c in ("a", "b")}
        self.handler = Recorder({c: w.log for c, w in self.writers.items()})
        self.gate = Gate(self.handler)
        self.batches: dict[int, list[int]] = {}
        self._query: StreamingQuery | None = None
        self._count = 0

    def _writer(self, channel: str) -> ChannelWriter:
        return ChannelWriter(
            self.base / channel,
            self.spark.range(0).schema,
            job="job",
            producer=NodeId(channel),
            timeline=Timeline(1),
            incarnation=Incarnation(1),
        )

    def write(self, channel: str, *values: int) -> int:
        self._count += 1
        df = self.spark.createDataFrame([(v,) for v in values], "id long").coalesce(1)
        commit = write_batch(df, self._count, self.writers[channel])
        assert commit is not None
        return commit.version

    def read(self, channel: str) -> DataFrame:
        return read_channel(
            self.spark,
            path=self.base / channel,
            schema=self.writers[channel].schema,
            stage=NodeId("query"),
            channel=ChannelId(channel),
            gate=self.gate.address,
        )

    def run(self, stream: DataFrame) -> None:
        """Run until the gate offers nothing new (Spark's AvailableNow would bind the gate's answers)."""

        def remember(batch: DataFrame, batch_id: int) -> None:
            self.batches[batch_id] = sorted(row[0] for row in batch.collect())

        query = (
            stream.writeStream.foreachBatch(remember)
            .option("checkpointLocation", str(self.base / "checkpoint"))
            .trigger(processingTime="0 seconds")
            .start()
        )
        query.processAllAvailable()
        query.stop()

    def offsets(self, batch: int) -> list[object]:
        lines = (self.base / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()
        return [json.loads(line) for line in lines[2:]]

    def forget_commit(self, batch: int) -> None:
        """As if the driver had died between the batch's end and Spark's note of it."""
        for name in (str(batch), f".{batch}.crc"):
            (self.base / "checkpoint" / "commits" / name).unlink(missing_ok=True)


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    world = World(spark, tmp_path)
    yield world
    world.gate.close()


@pytest.mark.spark
def test_a_batch_ends_where_the_gate_says(world: World) -> None:
    first = world.write("a", 1, 2)
    world.write("a", 3)
    world.handler.limits["a"] = first
    world.run(world.read("a"))
    assert world.batches == {0: [1, 2]}
    del world.handler.limits["a"]
    world.run(world.read("a"))
    assert world.batches == {0: [1, 2], 1: [3]}


@pytest.mark.spark
def test_a_barrier_alone_makes_an_empty_batch(world: World) -> None:
    world.write("a", 1)
    world.run(world.read("a"))
    barrier = world.writers["a"].place_barrier(SnapshotId(1))
    world.run(world.read("a"))
    assert world.batches == {0: [1], 1: []}
    assert world.offsets(1) == [{"channel": "a", "version": barrier.version}]


@pytest.mark.spark
def test_a_batch_that_spark_did_not_commit_is_read_again_from_the_same_files(world: World) -> None:
    end = world.write("a", 1, 2)
    world.run(world.read("a"))
    world.forget_commit(0)
    world.write("a", 3)
    world.handler.asked.clear()
    world.batches.clear()
    world.run(world.read("a"))
    assert world.batches == {0: [1, 2], 1: [3]}
    assert world.handler.asked[0] == ("files", "a", 0, end)


@pytest.mark.spark
def test_the_gate_learns_what_will_not_be_asked_again(world: World) -> None:
    first = world.write("a", 1)
    world.run(world.read("a"))
    world.write("a", 2)
    world.run(world.read("a"))
    assert ("committed", "a", first) in world.handler.asked


@pytest.mark.spark
def test_several_channels_keep_their_places_in_the_plan(world: World) -> None:
    b, a = world.write("b", 10), world.write("a", 1)
    world.run(world.read("b").union(world.read("a")))
    assert world.batches == {0: [1, 10]}
    assert world.offsets(0) == [{"channel": "b", "version": b}, {"channel": "a", "version": a}]


@pytest.mark.spark
def test_channels_that_change_places_are_noticed(world: World) -> None:
    world.write("b", 10)
    world.write("a", 1)
    world.run(world.read("b").union(world.read("a")))
    with pytest.raises(StreamingQueryException, match="its inputs have changed places"):
        world.run(world.read("a").union(world.read("b")))


@pytest.mark.spark
def test_one_channel_may_be_read_twice(world: World) -> None:
    world.write("a", 1, 2)
    world.run(world.read("a").union(world.read("a").select((F.col("id") * 10).alias("id"))))
    assert world.batches == {0: [1, 2, 10, 20]}


@pytest.mark.spark
def test_what_the_gate_refuses_fails_the_query_in_the_same_words(world: World) -> None:
    world.handler.refuse = "Channel a is closed for repairs."
    with pytest.raises(StreamingQueryException, match="Channel a is closed for repairs"):
        world.run(world.read("a"))


@pytest.mark.spark
def test_rows_of_many_partitions_go_into_few_files(world: World) -> None:
    writer = world.writers["a"]
    commit = write_batch(world.spark.range(0, 1000, 1, 16), 1, writer, max_files=3)
    assert commit is not None
    assert (len(commit.files), commit.rows) == (3, 1000)
    assert not [p.name for p in (world.base / "a" / "data").rglob("*") if p.name.startswith(("_", "."))]


@pytest.mark.spark
def test_a_replayed_batch_runs_but_writes_nothing(world: World) -> None:
    writer = world.writers["a"]
    write_batch(world.spark.range(3), 1, writer)
    ran = world.spark.sparkContext.accumulator(0)

    def count(n):  # type: ignore[no-untyped-def]  # Spark would take hints for a kind of UDF
        ran.add(1)
        return n

    assert write_batch(world.spark.range(3).select(F.udf(count, "long")("id").alias("id")), 1, writer) is None
    assert ran.value == 3
    assert len(list((world.base / "a" / "data").glob("*/*"))) == 1


def test_files_are_spread_evenly_and_none_is_lost() -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    for _ in range(200):
        files = [DataFile(str(i), 1, rng.choice((1, 10, 1000, rng.randrange(5000)))) for i in range(rng.randrange(30))]
        groups = balance(files, wanted := rng.randrange(1, 6))
        assert sorted(f.path for g in groups for f in g) == sorted(f.path for f in files), seed
        assert len(groups) == min(wanted, len(files)), seed
        assert all([int(f.path) for f in g] == sorted(int(f.path) for f in g) for g in groups), seed
        assert groups == balance(files, wanted), seed
        sizes = [sum(f.size for f in g) for g in groups]
        assert not files or max(sizes) - min(sizes) <= max(f.size for f in files), seed


class Slow:
    """A handler that answers `latest` when it is told to."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go = threading.Event()

    def latest(self, stage: NodeId, channel: ChannelId, start: int, reader: str) -> int:
        self.entered.set()
        self.go.wait(30)
        return start + 1

    def initial(self, stage: NodeId, channel: ChannelId) -> int:
        return 0

    def available(self, stage: NodeId, channel: ChannelId) -> int:
        return 7

    def files(self, stage: NodeId, channel: ChannelId, start: int, end: int) -> list[DataFile]:
        raise ZeroDivisionError("oops")

    def committed(self, stage: NodeId, channel: ChannelId, end: int) -> None: ...


def client(address: GateAddress) -> GateClient:
    return GateClient(address, NodeId("query"), ChannelId("a"))


def test_a_wrong_token_is_turned_away() -> None:
    with Gate(Slow()) as gate, pytest.raises(GateClosed):
        client(GateAddress(gate.address.port, "0" * 64)).available()


def test_the_gate_is_open_to_this_machine_only() -> None:
    with Gate(Slow()) as gate:
        listening = Path("/proc/net/tcp").read_text().splitlines()
        (line,) = [n for n in listening if n.split()[1].endswith(f":{gate.address.port:04X}") and n.split()[3] == "0A"]
        assert line.split()[1].startswith("0100007F")  # 127.0.0.1


def test_one_source_that_waits_does_not_hold_up_the_others() -> None:
    slow = Slow()
    with Gate(slow) as gate:
        answers: list[int] = []
        waiting = threading.Thread(target=lambda: answers.append(client(gate.address).latest(1)))
        waiting.start()
        slow.entered.wait(30)
        assert client(gate.address).available() == 7
        slow.go.set()
        waiting.join()
        assert answers == [2]


def test_a_fault_in_the_driver_reaches_the_source_as_words() -> None:
    with Gate(Slow()) as gate, pytest.raises(Failed, match="ZeroDivisionError: oops"):
        client(gate.address).files(0, 1)


def test_closing_the_gate_releases_whoever_waits() -> None:
    slow = Slow()
    gate = Gate(slow)
    results: list[BaseException] = []

    def ask() -> None:
        try:
            client(gate.address).latest(1)
        except GateClosed as e:
            results.append(e)

    waiting = threading.Thread(target=ask)
    waiting.start()
    slow.entered.wait(30)
    gate.close()
    waiting.join(30)
    assert len(results) == 1
    slow.go.set()
    with pytest.raises(GateClosed):
        client(gate.address).available()


def environment(stream: DataFrame) -> Any:
    """The map that the driver's side of the stream's source puts settings into, as the query will find it."""
    relation = stream._jdf.queryExecution().analyzed()
    while relation.getClass().getSimpleName() != "StreamingRelationV2":
        relation = relation.children().head()
    return relation.source().get().source().dataSourceCls().envVars()


@pytest.mark.spark
def test_no_two_streams_share_the_map_that_starting_queries_put_settings_into(world: World) -> None:
    # Spark finds the source when the query starts: by then both are registered.
    first, second, again = world.read("a"), world.read("b"), world.read("a")
    for stream in (first, second, again):
        environment(stream).put("WHOSE", str(id(stream)))
    for stream in (first, second, again):
        assert environment(stream)["WHOSE"] == str(id(stream))
    world.write("a", 1, 2)
    world.write("b", 3)
    world.run(first.union(second))
    assert world.batches == {0: [1, 2, 3]}


DRIVER = """
    import sys, time
    from pathlib import Path
    from strobe.hosts.spark.channel.writer import ChannelWriter
    from strobe.hosts.spark.channel.gate import Gate
    from strobe.hosts.spark.jvm.session import spark_session
    from strobe.hosts.spark.channel.source import read_channel

    class Handler:
        def initial(self, stage, channel):
            return 0

        def latest(self, stage, channel, start, reader):
            print("asked", flush=True)
            time.sleep(600)

    base = Path(sys.argv[1])
    spark = spark_session("dies", "local[1]")
    writer = ChannelWriter(base / "a", spark.range(0).schema, job="j", producer="a", timeline=1, incarnation=1)
    gate = Gate(Handler())
    stream = read_channel(spark, path=base / "a", schema=writer.schema, stage="s", channel="a", gate=gate.address)
    query = stream.writeStream.format("noop").option("checkpointLocation", str(base / "checkpoint")).start()
    query.awaitTermination()
"""


@pytest.mark.spark
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes through /proc")
def test_nothing_is_left_running_when_the_driver_is_killed(tmp_path: Path) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DRIVER), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == "asked\n"
    started = family(driver.pid)[1:]
    assert len(started) >= 2, "at least the JVM and the source's process"
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    eventually(lambda: not any(map(alive, started)), "all that it had started has ended")

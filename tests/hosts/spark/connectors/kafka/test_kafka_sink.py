"""The Kafka sink by itself against a real broker: what becomes of a row, what is refused, who may write."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

import strobe
from strobe.hosts.spark import crash_points
from strobe.hosts.spark.connectors.base import Part, SinkContext, Unreachable
from strobe.hosts.spark.connectors.kafka import client as kafka_client
from strobe.hosts.spark.connectors.kafka import transactions as kafka_transactions
from strobe.hosts.spark.connectors.kafka.client import KafkaCluster
from strobe.hosts.spark.connectors.kafka.commits import CommitLog, CommitRecord
from strobe.hosts.spark.connectors.kafka.small_batches import ROWS
from strobe.hosts.spark.connectors.kafka.transactions import Needs
from strobe.hosts.spark.stage.local_frame import local_frame
from strobe.model.errors import Failed, Fenced, Misuse
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline
from tests.servers.kafka import PASSWORD, USER, free_ports
from tests.services import Server
from tests.support.spark.kafka_world import committed, json_rows, new_topic, pinned

pytestmark = [pytest.mark.spark, pytest.mark.services("kafka")]

DDL = "n BIGINT, text STRING"


def rows(spark: SparkSession, *given: tuple[Any, ...], ddl: str = DDL) -> DataFrame:
    return local_frame(spark, list(given), ddl)


def opened(
    sink: strobe.KafkaSink, frame: DataFrame, home: Path, *, incarnation: int = 1, timeline: int = 1, job: str = "job"
) -> strobe.KafkaSink:
    sink.open(
        SinkContext(
            job=job, stage=NodeId("stage"), name="stage/0", timeline=Timeline(timeline),
            incarnation=Incarnation(incarnation), schema=frame.schema, output_mode="append", base=home,
            staging=home / "sinks" / f"t{timeline}",
        )
    )  # fmt: skip
    sink.recover([])
    return sink


def part(through: int, after: int = -1, snapshot: int = 1) -> Part:
    return Part(f"job/stage/0/1/{snapshot}", SnapshotId(snapshot), Timeline(1), after, through)


def deliver(sink: strobe.KafkaSink, frame: DataFrame, batch: int = 0) -> None:
    """One batch, all the way."""
    sink.write(frame, batch)
    one = part(batch, batch - 1, batch + 1)
    sink.commit(one, sink.prepare(one))


# ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_row_without_a_value_column_is_sent_as_json_nulls_included(
    spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    topic, frame = new_topic(kafka), rows(spark, (1, "ä"), (2, None))
    deliver(opened(strobe.KafkaSink(kafka, topic), frame, tmp_path), frame)
    assert sorted(json_rows(kafka, topic), key=lambda r: r["n"]) == [{"n": 1, "text": "ä"}, {"n": 2, "text": None}]


def test_key_value_headers_partition_and_topic_come_from_columns_and_compression_from_the_sink(
    spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    one, two = new_topic(kafka, partitions=3), new_topic(kafka, partitions=3)
    ddl = "t STRING, k STRING, v BINARY, h MAP<STRING, STRING>, p INT"
    frame = rows(
        spark, (one, "k1", b"\x00v1", {"a": "1", "b": "2"}, 2), (two, None, None, None, 0), (two, "k3", b"v3", {}, 1),
        ddl=ddl,
    )  # fmt: skip
    sink = strobe.KafkaSink(
        kafka, topic_column="t", key="k", value="v", headers="h", partition="p", compression="zstd",
        options={"linger.ms": 5},
    )  # fmt: skip
    deliver(opened(sink, frame, tmp_path), frame)
    [first] = committed(kafka, one)
    assert (first.key(), first.value(), first.partition()) == (b"k1", b"\x00v1", 2)
    assert sorted(first.headers() or []) == [("a", b"1"), ("b", b"2")]
    assert [(m.key(), m.value(), m.partition()) for m in committed(kafka, two)] == [(None, None, 0), (b"k3", b"v3", 1)]


def test_a_key_goes_to_the_partition_to_which_a_java_producer_sends_it(
    spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    topic, frame = new_topic(kafka, partitions=4), rows(spark, *((n, "") for n in range(20)))
    deliver(opened(strobe.KafkaSink(kafka, topic, key="n"), frame, tmp_path), frame)
    assert {(int(m.key() or b""), m.partition()) for m in committed(kafka, topic)} == {
        (n, (_murmur2(str(n).encode()) & 0x7FFFFFFF) % 4) for n in range(20)
    }


def _murmur2(data: bytes) -> int:
    """Kafka's hash of keys, from its description."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = h * m & mask ^ k
    if len(data) > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


# ── on batch ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("count", [3, ROWS + 1])
def test_on_batch_a_small_and_a_large_batch_are_visible_once_and_leave_nothing_behind(
    spark: SparkSession, kafka: str, tmp_path: Path, count: int
) -> None:
    topic, frame = new_topic(kafka, partitions=1), rows(spark, *((n, "x") for n in range(count)))
    first = opened(strobe.KafkaSink(kafka, topic, delivery="on_batch"), frame, tmp_path)
    first.write(frame, 0)
    assert (first.rows_taken, first.last_batch()) == (count, 0)
    again = opened(strobe.KafkaSink(kafka, topic, delivery="on_batch"), frame, tmp_path, incarnation=2)
    again.write(frame, 0)  # as after a crash between its transaction and Spark's own commit
    assert again.rows_taken is None
    assert [row["n"] for row in json_rows(kafka, topic)] == list(range(count))
    assert not list((tmp_path / "sinks" / "t1").rglob("*.parquet"))


def test_on_batch_a_transaction_of_which_nobody_knows_the_outcome_is_repeated_with_the_same_rows(
    spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, frame = new_topic(kafka), rows(spark, *((n, "x") for n in range(10)))
    sink = opened(strobe.KafkaSink(kafka, topic, delivery="on_batch"), frame, tmp_path)
    failures = 2

    def fail(name: str, stage: str = "") -> None:
        nonlocal failures
        if name == "kafka.in-transaction" and failures:
            failures -= 1
            raise BufferError

    monkeypatch.setattr(crash_points, "point", fail)
    sink.write(frame, 0)
    assert failures == 0
    assert sorted(row["n"] for row in json_rows(kafka, topic)) == list(range(10))
    assert not pinned(kafka, [topic, "strobe-commits"])


# ── what is refused ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_that_is_too_large_is_refused_by_name_before_anything_is_sent(
    spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    topic = new_topic(kafka, max_message_bytes="3000")
    frame = rows(spark, (1, "small"), (2, "x" * 4000))
    sink = opened(strobe.KafkaSink(kafka, topic), frame, tmp_path)
    sink.write(frame, 0)
    with pytest.raises(Failed, match=r"takes 3,000 \(max\.message\.bytes\).*\\\"n\\\":2,"):
        sink.prepare(part(0))
    assert committed(kafka, topic, "read_uncommitted") == []


def test_messages_just_below_the_limit_go_through_however_many_there_are(
    spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    topic = new_topic(kafka, partitions=1, max_message_bytes="3000")
    frame = rows(spark, *((n, "x" * 2700) for n in range(50)))
    deliver(opened(strobe.KafkaSink(kafka, topic), frame, tmp_path), frame)
    assert [row["n"] for row in json_rows(kafka, topic)] == list(range(50))


@pytest.mark.parametrize("delivery", ["on_snapshot", "on_batch"])
def test_rows_that_no_topic_takes_are_set_aside_with_the_reason_and_the_others_are_sent(
    spark: SparkSession, kafka: str, tmp_path: Path, delivery: str
) -> None:
    topic = new_topic(kafka, partitions=2, max_message_bytes="3000")
    ddl = "t STRING, v STRING, p INT"
    frame = rows(
        spark, (topic, "good", 0), (topic, "x" * 4000, 0), ("no-such-topic", "lost", 0), (None, "nowhere", 0),
        (topic, "off", 7), (topic, "also good", None), ddl=ddl,
    )  # fmt: skip
    sink = strobe.KafkaSink(
        kafka, topic_column="t", value="v", partition="p", delivery=delivery, dead_letters=strobe.DeadLetters("dead")
    )
    opened(sink, frame, tmp_path)
    if delivery == "on_batch":
        sink.write(frame, 0)
    else:
        deliver(sink, frame)
    assert sorted(m.value() or b"" for m in committed(kafka, topic)) == [b"also good", b"good"]
    letters = DeltaTable(str(tmp_path / "dead")).to_pyarrow_table().to_pylist()
    reasons = {json.loads(letter["row"])["value"][:7]: letter["reason"] for letter in letters}
    assert reasons.keys() == {"xxxxxxx", "lost", "nowhere", "off"}
    assert "takes 3,000" in reasons["xxxxxxx"]
    assert reasons["lost"] == "there is no topic 'no-such-topic'"
    assert reasons["nowhere"] == "the topic is null"
    assert reasons["off"].endswith("2 partitions, there is no partition 7")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"topic": "no-such-topic"}, "there is no topic 'no-such-topic'"),
        ({"key": "account"}, r"key='account', but the stage has no such column.*Its columns are: n, text"),
        ({"partition": "text"}, "column of type string; it must be int"),
        ({"headers": "text"}, "headers='text' is a column of type string"),
        ({"options": {"no.such.setting": "1"}}, "the client does not take its settings: .*no.such.setting"),
    ],
)
def test_what_can_never_work_is_said_at_the_start(
    spark: SparkSession, kafka: str, tmp_path: Path, arguments: dict[str, Any], said: str
) -> None:
    frame = rows(spark, (1, "x"))
    with pytest.raises(Misuse, match=said):
        opened(strobe.KafkaSink(kafka, **{"topic": new_topic(kafka), **arguments}), frame, tmp_path)
    assert not (tmp_path / "sinks" / "t1").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        {}, {"topic": "t", "topic_column": "c"}, {"topic": "t", "compression": "rar"},
        {"topic": "t", "delivery": "sometimes"}, {"topic": "t", "options": {"enable.idempotence": False}},
        {"topic": "t", "options": {"linger.ms": None}},
    ],
)  # fmt: skip
def test_a_sink_that_makes_no_sense_is_refused_when_it_is_declared(arguments: dict[str, Any]) -> None:
    with pytest.raises(Misuse, match="KafkaSink"):
        strobe.KafkaSink("localhost:9092", **arguments)


def test_a_broker_that_does_not_answer_is_named_with_what_was_tried(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_client, "REACH", 2.0)
    [port] = free_ports(1)
    frame = rows(spark, (1, "x"))
    with pytest.raises(Unreachable, match=rf"Kafka at 127\.0\.0\.1:{port}: It cannot be reached: .*[Cc]onnect"):
        opened(strobe.KafkaSink(f"127.0.0.1:{port}", "t"), frame, tmp_path)
    with pytest.raises(Unreachable, match=rf"127\.0\.0\.1:{port}"):
        strobe.read_kafka(spark, f"127.0.0.1:{port}", "t")


def test_a_source_says_which_topic_is_missing(spark: SparkSession, kafka: str) -> None:
    with pytest.raises(Misuse, match="there is no topic 'no-such-topic'"):
        strobe.read_kafka(spark, kafka, ["no-such-topic", new_topic(kafka)])


# ── who may write ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_driver_that_was_given_up_cannot_commit_nor_keep_its_successor_from_it(
    spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    topic, frame = new_topic(kafka), rows(spark, (1, "x"))
    old = opened(strobe.KafkaSink(kafka, topic), frame, tmp_path)
    old.write(frame, 0)
    prepared = old.prepare(part(0))
    new = opened(strobe.KafkaSink(kafka, topic), frame, tmp_path, incarnation=2)
    with pytest.raises(Unreachable, match=r"has taken the transactional id .* over"):
        old.commit(part(0), prepared)
    with pytest.raises(Fenced, match="incarnation 2"):
        old.commit(part(0), prepared)
    # The old one's second attempt has taken the id away for a moment; the new one takes it back.
    with pytest.raises(Unreachable):
        new.commit(part(0), prepared)
    new.commit(part(0), prepared)
    assert len(committed(kafka, topic)) == 1


def test_a_transactional_id_of_another_job_is_refused(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    topic, frame = new_topic(kafka), rows(spark, (1, "x"))
    options = {"transactional.id": f"shared-{topic}"}
    first = opened(strobe.KafkaSink(kafka, topic, options=options), frame, tmp_path / "one", job="first")
    first.write(frame, 0)
    with pytest.raises(Misuse, match=r"in use by another job: sink 'stage/0' of job 'first'"):
        opened(strobe.KafkaSink(kafka, topic, options=options), frame, tmp_path / "two", job="second")
    prepared = first.prepare(part(0))
    with pytest.raises(Unreachable):
        first.commit(part(0), prepared)  # the second had to ask Kafka for the id before it could know
    first.commit(part(0), prepared)
    assert len(committed(kafka, topic)) == 1


def test_jobs_of_one_name_in_different_homes_do_not_disturb_each_other(
    spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    topic, frame = new_topic(kafka), rows(spark, (1, "x"))
    sinks = [opened(strobe.KafkaSink(kafka, topic), frame, tmp_path / home) for home in ("one", "two")]
    for sink in (*sinks, *sinks):
        batch = sink.last_batch()
        deliver(sink, frame, 0 if batch is None else batch + 1)
    assert len(committed(kafka, topic)) == 4


@pytest.mark.parametrize(("first", "second"), [("copy", "original"), ("original", "copy")])
def test_of_a_home_and_its_copy_elsewhere_the_first_that_starts_writes(
    spark: SparkSession, kafka: str, tmp_path: Path, first: str, second: str
) -> None:
    topic, frame = new_topic(kafka), rows(spark, (1, "x"))
    deliver(opened(strobe.KafkaSink(kafka, topic), frame, tmp_path / "home"), frame, 0)
    shutil.copytree(tmp_path / "home", tmp_path / "copy")
    (tmp_path / "home").rename(tmp_path / "original")
    going_on = opened(strobe.KafkaSink(kafka, topic), frame, tmp_path / first, incarnation=2)
    with pytest.raises(Misuse, match="the home was copied"):
        opened(strobe.KafkaSink(kafka, topic), frame, tmp_path / second, incarnation=2)
    going_on.close()
    again = opened(strobe.KafkaSink(kafka, topic), frame, tmp_path / first, incarnation=3)
    deliver(again, frame, 1)
    assert len(committed(kafka, topic)) == 2


# ── transactions ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_visible_is_read_behind_transactions_that_others_have_open(kafka: str) -> None:
    topic = new_topic(kafka, "commits", partitions=1)
    cluster = KafkaCluster(kafka, {})
    mine, theirs = CommitLog(cluster, topic, f"mine-{topic}"), CommitLog(cluster, topic, f"theirs-{topic}")

    def begin(log: CommitLog, through: int) -> Producer:
        producer = Producer({"bootstrap.servers": kafka, "transactional.id": log.transactional_id, "log_level": 2})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(topic, CommitRecord("o", "j", "s", 1, 1, through).encode(), log.key(1))
        producer.flush(30)
        return producer

    other = begin(theirs, 5)
    begin(mine, 3).commit_transaction(30)
    assert pinned(kafka, [topic])
    threading.Timer(1.0, lambda: other.abort_transaction(30)).start()
    assert mine.read()[1].through == 3
    assert theirs.read() == {}


def test_a_transaction_gets_time_by_its_size_and_requests_that_the_smallest_topic_takes() -> None:
    assert Needs().settings()["transaction.timeout.ms"] == 60_000
    assert Needs(bytes=300_000_000).settings()["transaction.timeout.ms"] == 300_000
    assert Needs(bytes=10**12).settings()["transaction.timeout.ms"] == 900_000
    assert Needs(largest=2500, smallest_limit=3000, largest_limit=3000).settings()["batch.size"] == 500
    assert Needs(largest=3000, smallest_limit=3000, largest_limit=9000).settings()["message.max.bytes"] == 9000


# ── a broker that dies, and one that wants a password ───────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Server("kafka", tmp_path_factory.mktemp("own")) as server:
        yield server


@pytest.mark.slow
def test_a_broker_killed_in_the_middle_of_a_transaction_and_started_again_has_each_message_once(
    spark: SparkSession, own_broker: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_transactions, "_STILL", 1.0)
    servers = own_broker.address
    topic, frame = new_topic(servers), rows(spark, *((n, "x") for n in range(100)))
    sink = opened(strobe.KafkaSink(servers, topic), frame, tmp_path)
    sink.write(frame, 0)
    prepared = sink.prepare(part(0))

    def die(name: str, stage: str = "") -> None:
        if name == "kafka.in-transaction":
            own_broker.kill()

    with monkeypatch.context() as patch:
        patch.setattr(crash_points, "point", die)
        with pytest.raises(Unreachable, match="will be repeated as a whole"):
            sink.commit(part(0), prepared)
    # Snapshots go on while the broker is away.
    sink.write(frame, 1)
    later = sink.prepare(part(1, 0, 2))
    own_broker.start()
    for one, data in ((part(0), prepared), (part(1, 0, 2), later)):
        until_it_works(sink, one, data)
    assert sorted(row["n"] for row in json_rows(servers, topic)) == sorted([*range(100), *range(100)])
    assert not pinned(servers, [topic, "strobe-commits"])


def until_it_works(sink: strobe.KafkaSink, one: Part, prepared: Any) -> None:
    for left in reversed(range(20)):
        try:
            sink.commit(one, prepared)
            return
        except Unreachable:
            if not left:
                raise


def test_a_clock_that_the_topic_does_not_take_is_tried_again_and_named(
    spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    # What was made a moment ago is too old here, as it is too new for a topic elsewhere if the clock is ahead.
    topic, frame = new_topic(kafka, message_timestamp_before_max_ms="0"), rows(spark, (1, "late"))
    sink = opened(strobe.KafkaSink(kafka, topic), frame, tmp_path)  # its own record does not depend on the clock
    sink.write(frame, 0)
    prepared = sink.prepare(part(0))
    with pytest.raises(Unreachable, match="nvalid timestamp") as caught:
        sink.commit(part(0), prepared)
    assert "Set this machine's clock" in caught.value.next
    assert committed(kafka, topic) == []


@pytest.mark.slow
def test_credentials_are_passed_on_to_sink_and_source_and_wrong_ones_are_never_printed(
    spark: SparkSession, own_broker: Server, tmp_path: Path
) -> None:
    servers = (own_broker.folder / "sasl").read_text().strip()
    right = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER,
        "sasl.password": PASSWORD,
    }  # fmt: skip
    topic, frame = new_topic(own_broker.address), rows(spark, (1, "secret"))
    deliver(opened(strobe.KafkaSink(servers, topic, options=right), frame, tmp_path), frame)
    messages = strobe.read_kafka(spark, servers, topic, security=right, headers=True)
    query = messages.writeStream.format("memory").queryName("heard").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(120)
    assert [json.loads(bytes(r["value"])) for r in spark.table("heard").collect()] == [{"n": 1, "text": "secret"}]

    wrong = {**right, "sasl.password": "wrong-and-not-to-be-printed"}
    for attempt in (
        lambda: opened(strobe.KafkaSink(servers, topic, options=wrong), frame, tmp_path / "wrong"),
        lambda: strobe.read_kafka(spark, servers, topic, security=wrong),
    ):
        with pytest.raises(Failed, match="uthentication") as caught:
            attempt()
        assert "Check user, password" in caught.value.next
        assert "wrong-and-not-to-be-printed" not in f"{caught.value} {caught.value.__cause__} {caught.value!r}"

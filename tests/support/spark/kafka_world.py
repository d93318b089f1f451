"""What tests of Kafka share: topics of their own, and readers that see what a careful consumer sees."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

QUIET = {"log_level": 2}


def new_topic(servers: str, name: str = "t", partitions: int = 2, **config: str) -> str:
    """A topic that nobody else has; `max_message_bytes="2000"` sets max.message.bytes."""
    topic = f"{name}-{uuid.uuid4().hex[:10]}"
    admin = AdminClient({"bootstrap.servers": servers, **QUIET})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(topic, num_partitions=partitions, config=settings)])[topic].result(30)
    while topic not in admin.list_topics(timeout=10).topics:  # the broker tells of it in its own time
        pass
    return topic


def produce(servers: str, topic: str, values: Iterable[bytes], keys: Iterable[bytes] | None = None) -> None:
    producer = Producer({"bootstrap.servers": servers, "acks": "all", **QUIET})
    for value, key in zip(values, keys, strict=True) if keys is not None else ((v, v) for v in values):
        producer.produce(topic, value, key)
    assert producer.flush(30) == 0


def committed(servers: str, topic: str, isolation: str = "read_committed") -> list[Message]:
    """Every message that such a consumer sees now, by partition and offset. A transaction that is committed is visible
    when its marks are in the topic, which is a moment later: that is waited for, an open transaction only so long."""
    deadline = time.monotonic() + 5
    while isolation == "read_committed" and time.monotonic() < deadline and pinned(servers, [topic]):
        time.sleep(0.02)
    consumer = Consumer({
        "bootstrap.servers": servers, "group.id": f"reader-{uuid.uuid4().hex}", "isolation.level": isolation,
        "enable.auto.commit": False, "enable.partition.eof": True, "fetch.wait.max.ms": 10, **QUIET,
    })  # fmt: skip
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
        found: list[Message] = []
        left = set(partitions)
        while left:
            message = consumer.poll(30)
            assert message is not None, f"no end of {topic} within 30 s"
            error = message.error()
            if error is None:
                found.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard(message.partition())
        return sorted(found, key=lambda m: (m.partition() or 0, m.offset() or 0))
    finally:
        consumer.close()


def json_rows(servers: str, topic: str) -> list[dict[str, Any]]:
    return [json.loads(m.value() or b"null") for m in committed(servers, topic)]


def pinned(servers: str, topics: Sequence[str]) -> bool:
    """Whether an open transaction keeps readers of these topics from their end."""
    admin = AdminClient({"bootstrap.servers": servers, **QUIET})
    for topic in topics:
        places = [TopicPartition(topic, p) for p in admin.list_topics(topic, timeout=30).topics[topic].partitions]
        ends = []
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
            asked = admin.list_offsets({p: OffsetSpec.latest() for p in places}, isolation_level=level)
            ends.append([asked[p].result().offset for p in places])
        if ends[0] != ends[1]:
            return True
    return False

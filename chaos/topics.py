"""Kafka topics as a careful consumer sees them: committed messages only, up to the end as it is now."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

__all__ = ["COMMITS", "POSTINGS", "TRANSFERS", "make_topics", "pinned", "read_all", "read_from"]

TRANSFERS = "transfers"
POSTINGS = "postings"
COMMITS = "strobe-commits"
PARTITIONS = 2
_PATIENCE = 30.0  # seconds for the next message, or for the answer that there is none


def make_topics(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
    for made in admin.create_topics([NewTopic(t, num_partitions=PARTITIONS) for t in (TRANSFERS, POSTINGS)]).values():
        made.result(30)
    while not {TRANSFERS, POSTINGS} <= set(admin.list_topics(timeout=10).topics):
        pass  # the broker reports them with a delay


def read_from(consumer: Any, topic: str, starts: Mapping[int, int]) -> Iterator[Message]:
    """Every message from these offsets (by partition) up to the end, as far as the consumer may see them."""
    consumer.assign([TopicPartition(topic, partition, offset) for partition, offset in starts.items()])
    left = set(starts)
    while left:
        message = consumer.poll(_PATIENCE)
        if message is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no end of {topic} within {_PATIENCE:.0f} s"))
        error = message.error()
        if error is None:
            yield message
        elif error.code() == KafkaError._PARTITION_EOF:
            left.discard(message.partition())
        elif not error.retriable() and error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            raise KafkaException(error)


def read_all(servers: str, topic: str) -> Iterator[Message]:
    consumer = Consumer({
        "bootstrap.servers": servers, "group.id": f"chaos-{uuid.uuid4().hex}", "enable.auto.commit": False,
        "isolation.level": "read_committed", "enable.partition.eof": True, "log_level": 2,
    })  # fmt: skip
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        yield from read_from(consumer, topic, dict.fromkeys(partitions, 0))
    finally:
        consumer.close()


def pinned(servers: str, topics: Sequence[str]) -> list[str]:
    """Topics whose readers an open transaction keeps from the end."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
    known = admin.list_topics(timeout=30).topics
    found = []
    for topic in (t for t in topics if t in known):
        places = [TopicPartition(topic, p) for p in known[topic].partitions]
        ends = []
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
            asked = admin.list_offsets({p: OffsetSpec.latest() for p in places}, isolation_level=level)
            ends.append([asked[p].result(30).offset for p in places])
        found += [topic] if ends[0] != ends[1] else []
    return found

"""Writes transfers into a topic at a steady rate, until it is told to end (SIGTERM) or is killed.

    python -m chaos.generator SERVERS SEED RATE [TOPIC]

Each transfer is in the topic exactly once, whatever happens to the generator or the broker: it writes a few at a time,
in transactions; a new generator first fences its predecessor off, looks for the newest transfer in the topic, and goes
on with the next. Transfer `i` goes to partition `i` modulo their number, so the newest is near the end of one of them.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from dataclasses import asdict
from types import FrameType
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from chaos.topics import TRANSFERS, read_from
from chaos.transfers import transfer

BEAT = 0.5  # seconds between two transactions
_AGAIN = 0.5  # seconds until a broker is asked again


def main(servers: str, seed: int, rate: int, topic: str = TRANSFERS) -> int:
    told = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        told.set()

    signal.signal(signal.SIGTERM, end)
    while not told.is_set():
        try:
            _write(servers, topic, seed, max(1, round(rate * BEAT)), told)
        except KafkaException as error:
            print(f"{error}; once more", flush=True)
            told.wait(_AGAIN)
    return 0


def _write(servers: str, topic: str, seed: int, at_once: int, told: threading.Event) -> None:
    """Until told to end, or until the producer can no longer be used."""
    producer = Producer({
        "bootstrap.servers": servers, "transactional.id": f"generator-of-{topic}", "transaction.timeout.ms": 60_000,
        "log_level": 2, "linger.ms": 5,
    })  # fmt: skip
    producer.init_transactions(30)
    partitions = len(producer.list_topics(topic, timeout=10).topics[topic].partitions)
    number = newest(servers, topic, partitions) + 1
    print(f"goes on with transfer {number}", flush=True)
    due = time.monotonic()
    while not told.is_set():
        producer.begin_transaction()
        for _ in range(at_once):
            value = json.dumps(asdict(transfer(seed, number)))
            producer.produce(topic, value.encode(), partition=number % partitions)
            number += 1
        producer.commit_transaction(30)
        due = max(due + BEAT, time.monotonic() - 5 * BEAT)  # after a pause it catches up, but not all at once
        told.wait(max(0.0, due - time.monotonic()))


def newest(servers: str, topic: str, partitions: int) -> int:
    """The number of the newest committed transfer; -1 if there is none."""
    consumer = Consumer({
        "bootstrap.servers": servers, "group.id": "chaos-generator", "enable.auto.commit": False,
        "isolation.level": "read_committed", "enable.partition.eof": True, "log_level": 2,
    })  # fmt: skip
    try:
        return max(_last(consumer, topic, partition) for partition in range(partitions))
    finally:
        consumer.close()


def _last(consumer: Any, topic: str, partition: int) -> int:
    """Looks back from the end, further each time: marks of transactions and aborted rows take up offsets, too."""
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
    back = 200
    while True:
        start = max(low, high - back)
        found = [json.loads(m.value() or b"{}")["id"] for m in read_from(consumer, topic, {partition: start})]
        if found or start == low:
            return max(found, default=-1)
        back *= 10


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]))

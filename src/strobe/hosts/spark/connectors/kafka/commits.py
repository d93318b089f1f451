"""What is visible, according to Kafka itself: the commit records.

A transaction that makes rows visible also writes a record into a small compacted topic: of this sink, in this timeline,
everything up to batch N is visible. Rows and record appear together or not at all, so after any crash the newest record
says what is visible, and nothing else has to be remembered. One record is kept for each sink and timeline.

A record also says whose it is (`owner`, a name that a job's home makes up once) and which incarnation wrote it: this is
how a driver that was given up, or another job with the same transactional id, is recognised and refused. One more
record for each id has the name of the start that wrote last, by which a copy of a home is recognised
(`connectors.starts`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from strobe.hosts.shared.clock import SYSTEM
from strobe.hosts.spark.connectors.base import Unreachable
from strobe.hosts.spark.connectors.kafka.client import ASK, KafkaCluster
from strobe.model.errors import Damaged, Failed, Misuse

if TYPE_CHECKING:
    from confluent_kafka import Consumer

__all__ = ["CommitLog", "CommitRecord"]

_SETTINGS: Final = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",  # or a driver whose clock is wrong could not even start
    "min.cleanable.dirty.ratio": "0.1",
    "segment.ms": str(6 * 3600 * 1000),  # the newest segment is never compacted
    "segment.bytes": str(16 * 1024 * 1024),
}
_READ: Final = 60.0  # seconds; a transaction of another job may hold the topic's end for as long as it lasts


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """A record: of `sink`, in `timeline`, every batch up to `through` is visible."""

    owner: str
    job: str
    sink: str
    timeline: int
    incarnation: int
    through: int
    snapshot: int | None = None
    rows: int = 0

    def encode(self) -> bytes:
        return msgspec.json.encode({"version": 1, **asdict(self)})

    @classmethod
    def decode(cls, data: bytes, where: str) -> CommitRecord:
        try:
            return msgspec.json.decode(data, type=_Version1).record()
        except (msgspec.DecodeError, RecursionError) as error:
            raise Damaged(
                f"A record in {where} is not one that this Strobe wrote: {error}.",
                untouched="Nothing was written.",
                next="Give the sink a topic of its own for commit records: commits=…",
            ) from error


class _Version1(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record as it is in the topic, where anybody may have written."""

    version: Literal[1]
    owner: str
    job: str
    sink: str
    timeline: int
    incarnation: int
    through: int
    snapshot: int | None = None
    rows: int = 0

    def record(self) -> CommitRecord:
        return CommitRecord(
            self.owner, self.job, self.sink, self.timeline, self.incarnation, self.through, self.snapshot, self.rows
        )


class CommitLog:
    """The records of one transactional id."""

    def __init__(self, cluster: KafkaCluster, topic: str, transactional_id: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self.transactional_id = transactional_id
        self.start: str | None = None  # which start wrote last, as of the last reading (`connectors.starts`)

    @property
    def start_key(self) -> bytes:
        return f"{self.transactional_id}/start".encode()

    def key(self, timeline: int) -> bytes:
        return f"{self.transactional_id}/{timeline}".encode()

    def ensure(self, topics: Iterable[str]) -> None:
        """The topic exists when this returns. `topics` are those that are known to."""
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import NewTopic

        if self.topic not in topics:
            new = NewTopic(self.topic, num_partitions=1, config=_SETTINGS)
            try:
                self.cluster.admin.create_topics([new], request_timeout=ASK * 2)[self.topic].result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise Failed(
                        f"{self.cluster.explain(error.args[0], f'topic {self.topic!r} could not be made').what}",
                        untouched="Nothing was started.",
                        next="Have somebody make it: one partition, cleanup.policy=compact. It keeps what is visible.",
                    ) from None
            deadline = SYSTEM.monotonic() + ASK * 2
            while self.topic not in self.cluster.topics():  # other brokers hear of it after a moment
                if SYSTEM.monotonic() > deadline:
                    raise Unreachable(f"Kafka at {self.cluster.servers}: topic {self.topic!r} is still being made.")
                SYSTEM.sleep(0.05)
        else:
            self._check_kept()

    def _check_kept(self) -> None:
        """Check that a topic that was there before keeps the newest record of each key for ever."""
        policy = self.cluster.cleanup_policy(self.topic)
        if policy is not None and policy != {"compact"}:
            raise Misuse(
                f"Kafka at {self.cluster.servers}: topic {self.topic!r} has cleanup.policy={','.join(sorted(policy))}, "
                "so it loses old records. It keeps which rows are visible: without it rows would be written twice.",
                untouched="Nothing was started.",
                next="Set cleanup.policy=compact, alone, on that topic, or name another one: commits=…",
            )

    def read(self) -> dict[int, CommitRecord]:
        """The newest record of each timeline. Called after `init_transactions`, which has brought every earlier
        transaction of this id to its end: so what is not here now will never be."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

        settings = self.cluster.settings(
            group_id=f"strobe-{self.transactional_id}", isolation_level="read_committed", enable_partition_eof=True,
            fetch_wait_max_ms=10,
        )  # fmt: skip
        settings.update(
            {"enable.auto.commit": False, "isolation.level": "read_committed", "enable.partition.eof": True}
        )
        for name in ("transactional.id", "compression.type", "linger.ms", "batch.size", "acks", "partitioner"):
            settings.pop(name, None)
        self.cluster.reach()  # the topic's leader may have changed, or the broker may be another one
        try:
            end = self._end()
            consumer: Consumer = self.cluster.made(lambda: Consumer(settings))
            try:
                consumer.list_topics(self.topic, timeout=ASK)  # or the consumer takes longer to find the broker
                consumer.assign([TopicPartition(self.topic, 0, OFFSET_BEGINNING)])
                return self._read(consumer, end)
            finally:
                consumer.close()
        except KafkaException as error:
            raise self.cluster.explain(error.args[0], f"topic {self.topic!r} cannot be read") from None

    def _end(self) -> int:
        """Where the topic ends, transactions under way included."""
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        place = TopicPartition(self.topic, 0)
        asked = self.cluster.admin.list_offsets(
            {place: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=ASK
        )
        return int(asked[place].result().offset)

    def _read(self, consumer: Consumer, end: int) -> dict[int, CommitRecord]:
        from confluent_kafka import KafkaError, KafkaException

        found: dict[int, CommitRecord] = {}
        deadline = SYSTEM.monotonic() + _READ
        while end > 0:
            message = consumer.poll(0.5)
            if message is None:
                if SYSTEM.monotonic() > deadline:
                    raise Unreachable(
                        f"Kafka at {self.cluster.servers}: the end of topic {self.topic!r} did not come within "
                        f"{_READ:.0f} s: somebody's transaction is in the way."
                    )
                continue
            error = message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                # Open transactions of others hide what lies behind them, until they end.
                if (message.offset() or 0) >= end:
                    break
                continue
            name, _, timeline = (message.key() or b"").decode(errors="replace").rpartition("/")
            value = message.value()
            if message.key() == self.start_key and value is not None:
                self.start = value.decode(errors="replace")
            if name == self.transactional_id and timeline.isdigit() and value is not None:
                found[int(timeline)] = CommitRecord.decode(value, f"topic {self.topic!r} of {self.cluster.servers}")
        return found


def check_owner(records: Iterable[CommitRecord], owner: str, transactional_id: str) -> None:
    """Misuse if the transactional id is another job's."""
    for record in records:
        if record.owner != owner:
            raise Misuse(
                f"The transactional id {transactional_id!r} is in use by another job: sink {record.sink!r} of job "
                f"{record.job!r} has written with it.",
                untouched="Nothing was started, and nothing was written.",
                next='Leave "transactional.id" out of the options, or choose one that no other job has.',
            )

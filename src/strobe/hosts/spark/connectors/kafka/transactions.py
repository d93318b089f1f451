"""Writing to Kafka exactly once: one transaction at a time, each with its commit record.

*What a transaction holds.* Rows that are complete and durable elsewhere before it begins, and the record that says that
they are visible. It is begun when everything is there and ended as soon as everything is sent, so it pins the topic's
last stable offset for no longer than sending takes. One that a crash leaves open is ended by the next start with the
same transactional id, or by the broker after `transaction.timeout.ms`; neither can lose anything, because the rows are
still where they were.

*After a failure* nobody knows whether the transaction was committed. The producer is thrown away; the next attempt
makes another with the same id, which has Kafka bring the old transaction to its end, one way or the other, and then
reads the record. That answers it.

*Fencing.* Kafka lets only the newest producer with an id write. That alone does not say who *should* be the newest: a
driver that was given up could take the id back. So every start notes its incarnation in a record, and whoever has made
a new producer reads the records before it writes: finding a higher incarnation, it stops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from strobe.hosts.shared.clock import SYSTEM
from strobe.hosts.spark.connectors.base import Unreachable
from strobe.hosts.spark.connectors.kafka.client import KafkaCluster
from strobe.hosts.spark.connectors.kafka.commits import CommitLog, CommitRecord, check_owner
from strobe.hosts.spark.connectors.starts import begin, check_start
from strobe.model.errors import Fenced, Misuse, StrobeError
from strobe.model.ids import Incarnation

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

__all__ = ["FIXED", "Needs", "Publisher"]

FIXED: Final = ("bootstrap.servers", "enable.idempotence", "error_cb", "on_delivery", "delivery.report.only.error")
_TIMEOUT: Final = 60_000  # ms that a transaction may take at least
_LONGEST_TIMEOUT: Final = 900_000  # what brokers allow unless they are told otherwise (transaction.max.timeout.ms)
_SLOWEST: Final = 1_000_000  # bytes a second that even a slow connection manages
_BATCH: Final = 1_000_000  # librdkafka's own default
_STILL: Final = 10.0  # seconds without any progress after which an attempt is given up
_INIT: Final = 30.0


@dataclass(frozen=True, slots=True)
class Needs:
    """What a transaction asks of its producer: time, room for its largest message, and requests that the topic with the
    smallest limit takes. librdkafka may exceed the size of a request by one message, so that much is left free."""

    bytes: int = 0
    largest: int = 0
    largest_limit: int = _BATCH
    smallest_limit: int = _BATCH

    def settings(self) -> dict[str, Any]:
        timeout = min(_LONGEST_TIMEOUT, max(_TIMEOUT, self.bytes * 1000 // _SLOWEST))
        return {
            "transaction.timeout.ms": timeout,
            "message.max.bytes": max(self.largest_limit, 1000),
            "batch.size": max(1, min(_BATCH, self.smallest_limit - self.largest)),
        }


class Publisher:
    """The producer of one sink, and what is visible of it."""

    def __init__(
        self, cluster: KafkaCluster, log: CommitLog, me: CommitRecord, settings: Mapping[str, Any], kept: Path
    ) -> None:
        """`me` is the record that a start writes: whose, which timeline and incarnation. `kept` is the file of the home
        that has the owner's name."""
        self._kept = kept
        self._has_begun = False
        self._cluster = cluster
        self._log = log
        self._me = me
        self._settings = dict(settings)
        self._producer: Producer | None = None
        self._shape: dict[str, Any] = {}
        self._records: dict[int, CommitRecord] = {}
        self._lost: KafkaError | None = None

    def visible(self, timeline: int) -> int:
        """The last batch of the timeline that is visible, as far as is known here."""
        record = self._records.get(timeline)
        return -1 if record is None else record.through

    def open(self, needs: Needs) -> None:
        """Fence off every older producer, learn what is visible, and say who writes from now on."""
        self._renew(needs)
        known = self._records.get(self._me.timeline)
        mine = self._record(self._me.timeline, -1 if known is None else known.through, None, 0)
        start = begin(self._kept, Incarnation(self._me.incarnation))

        def say(producer: Producer) -> None:
            producer.produce(self._log.topic, start.name.encode(), self._log.start_key, partition=0)

        self._transact(say, mine)
        self._has_begun = True

    def publish(
        self, timeline: int, through: int, snapshot: int | None, needs: Needs, send: Callable[[Producer, Any], int]
    ) -> None:
        """Make what `send` hands to the producer visible, as everything of the timeline up to batch `through`. Changes
        nothing if it is visible already."""
        if self._producer is None or not self._fits(needs):
            self._renew(needs)
        if self.visible(timeline) >= through:
            return
        rows = 0

        def all_rows(producer: Producer) -> None:
            nonlocal rows
            rows = send(producer, lambda: self._wait(producer))

        self._transact(all_rows, self._record(timeline, through, snapshot, 0), lambda: rows)

    def close(self) -> None:
        self._drop()

    # ── one transaction ─────────────────────────────────────────────────────────────────────────────────────────────

    def _transact(
        self, send: Callable[[Producer], None], record: CommitRecord, rows: Callable[[], int] = lambda: 0
    ) -> None:
        from confluent_kafka import KafkaException

        from strobe.hosts.spark import crash_points

        producer = self._producer
        assert producer is not None
        self._lost = None
        try:
            producer.begin_transaction()
            send(producer)
            record = CommitRecord(**{**_fields(record), "rows": rows()})
            producer.produce(self._log.topic, record.encode(), self._log.key(record.timeline), partition=0)
            self._flush(producer)
            crash_points.point("kafka.in-transaction", record.sink.partition("/")[0])
            producer.commit_transaction(_STILL * 2)
        except KafkaException as error:
            raise self._failed(producer, error.args[0]) from None
        except (BufferError, SystemError):  # the latter when a fatal error meets a callback inside confluent_kafka
            raise self._failed(producer, None) from None
        except BaseException:
            self._abort(producer)
            raise
        self._records[record.timeline] = record

    def _wait(self, producer: Producer) -> None:
        """Wait for room in the queue. BufferError if there is no more progress."""
        left, since = len(producer), SYSTEM.monotonic()
        while True:
            producer.poll(0.01)
            if len(producer) < left:
                return
            if SYSTEM.monotonic() - since > _STILL or self._lost is not None:
                raise BufferError

    def _flush(self, producer: Producer) -> None:
        left, since = len(producer), SYSTEM.monotonic()
        while left:
            rest = producer.flush(0.5)
            if rest < left:
                left, since = rest, SYSTEM.monotonic()
            elif self._lost is not None or SYSTEM.monotonic() - since > _STILL:
                raise BufferError

    def _failed(self, producer: Producer, error: KafkaError | None) -> StrobeError:
        """What went wrong, in words. What became of the transaction is found out by the next attempt."""
        from confluent_kafka import KafkaError

        lost, late = self._lost, self._abort(producer)
        fenced = any(e is not None and e.code() in _fenced(KafkaError) for e in (error, lost, late))
        if fenced:
            # The records say by whom; only the next attempt can read them.
            return Unreachable(
                f"Kafka at {self._cluster.servers}: another producer has taken the transactional id "
                f"{self._log.transactional_id!r} over."
            )
        cause = lost or error or late or KafkaError(KafkaError._TIMED_OUT)
        return self._cluster.explain(cause, "the transaction failed, and will be repeated as a whole")

    def _abort(self, producer: Producer) -> KafkaError | None:
        """Abort the transaction if possible; the next attempt does it in any case. Returns the error if it failed."""
        from confluent_kafka import KafkaError, KafkaException

        self._drop()
        try:
            producer.purge()
            producer.abort_transaction(2.0)
        except KafkaException as error:
            found = error.args[0]
            return found if isinstance(found, KafkaError) else None
        except SystemError:
            return None
        return None

    # ── the producer ────────────────────────────────────────────────────────────────────────────────────────────────

    def _fits(self, needs: Needs) -> bool:
        want, have = needs.settings(), self._shape
        return bool(
            want["transaction.timeout.ms"] <= have["transaction.timeout.ms"]
            and want["message.max.bytes"] <= have["message.max.bytes"]
            and want["batch.size"] >= have["batch.size"]
        )

    def _renew(self, needs: Needs) -> None:
        from confluent_kafka import KafkaException, Producer

        self._drop()
        self._shape = needs.settings()
        settings = {
            **self._cluster.settings(linger_ms=20, partitioner="murmur2_random", acks="all"),
            "queue.buffering.max.messages": 500_000,
            **self._shape,
            **self._settings,
            "transactional.id": self._log.transactional_id,
            "enable.idempotence": True,
            "delivery.report.only.error": True,
            "on_delivery": self._hear,
        }
        producer: Producer = self._cluster.made(lambda: Producer(settings))
        try:
            producer.init_transactions(_INIT)
        except KafkaException as error:
            raise self._cluster.explain(error.args[0], "no transactions can be made") from None
        records = self._log.read()
        check_owner(records.values(), self._me.owner, self._log.transactional_id)
        self._check_start()
        newest = max((r.incarnation for r in records.values()), default=0)
        if newest > self._me.incarnation:
            raise Fenced(
                f"Incarnation {self._me.incarnation} of job {self._me.job} is fenced off by incarnation {newest}, "
                f"which has written to Kafka at {self._cluster.servers} as {self._log.transactional_id!r}.",
                untouched="Nothing was written.",
                next="A newer run of this job has taken over; this one must stop.",
            )
        self._records, self._producer = records, producer

    def _check_start(self) -> None:
        """Refuse if another home has written since: at the start of a job as a misuse, later because that home has
        taken over."""
        what = f"Kafka at {self._cluster.servers}"
        try:
            check_start(self._log.start, self._kept, Incarnation(self._me.incarnation), what)
        except Misuse as error:
            if not self._has_begun:
                raise
            raise Fenced(error.what, untouched=error.untouched, next=error.next) from None

    def _drop(self) -> None:
        self._producer = None

    def _hear(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._lost is None:
            self._lost = error

    def _record(self, timeline: int, through: int, snapshot: int | None, rows: int) -> CommitRecord:
        me = self._me
        return CommitRecord(me.owner, me.job, me.sink, timeline, me.incarnation, through, snapshot, rows)


def _fields(record: CommitRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


def _fenced(errors: type[KafkaError]) -> tuple[int, ...]:
    return (errors._FENCED, errors.PRODUCER_FENCED, errors.INVALID_PRODUCER_EPOCH, errors.FENCED_INSTANCE_ID)

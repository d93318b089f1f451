"""Kafka as a sink, exactly once for consumers that read committed messages only (`isolation.level=read_committed`).

*On snapshot* (the default): batches are staged in the job's home; when a snapshot is complete, its part is sent in one
short transaction together with a commit record (`transactions`, `commits`). No transaction is open while a
snapshot is under way, so none can be timed out or hold consumers up.

*On batch*: the same, batch by batch. Messages are visible earlier, and independently of the graph's other sinks. A
batch that a crash takes away before its transaction is committed is run again by Spark, so nothing of it need be
durable here, and a small one is not staged at all (`small_batches`).

What has been sent cannot be taken back: after a restore to an older snapshot, what came after it is in the topic twice.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from strobe.hosts.shared.clock import SYSTEM
from strobe.hosts.shared.durable import write_durably
from strobe.hosts.spark.connectors.base import (
    Delivery,
    Part,
    SinkContext,
    SinkFate,
    SinkOutlook,
    TransactionalSink,
    Unreachable,
    steady,
    whole_results,
)
from strobe.hosts.spark.connectors.dead_letters import DeadLetters, Letters, Rejected, checked_letters
from strobe.hosts.spark.connectors.kafka.client import KafkaCluster, TopicLimits, checked_settings
from strobe.hosts.spark.connectors.kafka.commits import CommitLog, CommitRecord
from strobe.hosts.spark.connectors.kafka.rows import Messages, PartSize, Piece, reject, send, topics_of
from strobe.hosts.spark.connectors.kafka.small_batches import SmallBatches
from strobe.hosts.spark.connectors.kafka.transactions import FIXED, Needs, Publisher
from strobe.hosts.spark.connectors.ownership import check_no_copy
from strobe.hosts.spark.connectors.staging import Staging
from strobe.model.backoff import backoff
from strobe.model.cut import Json
from strobe.model.errors import Failed, Misuse
from strobe.model.ids import NodeId, SnapshotId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["KafkaSink", "need_package"]

_COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_OWNER: Final = "kafka-owner"
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 15.0
_FRESH: Final = 30.0  # seconds for which what is known of topics is good enough

_log = logging.getLogger("strobe.kafka")


class KafkaSink(TransactionalSink):
    """`KafkaSink("broker:9092", "payments", key="account")`: each row a message, its value the row as JSON."""

    def __init__(
        self,
        servers: str,
        topic: str | None = None,
        *,
        topic_column: str | None = None,
        key: str | None = None,
        value: str | None = None,
        headers: str | None = None,
        partition: str | None = None,
        compression: str | None = None,
        options: Mapping[str, Any] | None = None,
        delivery: str = "on_snapshot",
        commits: str = "strobe-commits",
        dead_letters: DeadLetters | None = None,
    ) -> None:
        """`key`, `value`, `headers`, `partition` and `topic_column` name columns. `options` are librdkafka's settings,
        credentials among them. `commits` is the topic of the commit records, which several jobs may share."""
        where = f"KafkaSink({servers!r}, {topic!r})"
        if not isinstance(servers, str) or not servers.strip():
            raise Misuse(f"{where}: it needs the addresses of brokers, 'host:port,host:port'.")
        if (topic is None) == (topic_column is None):
            raise Misuse(f"{where}: it needs a topic, or the name of the column that has it (topic_column=…).")
        if compression is not None and compression not in _COMPRESSIONS:
            raise Misuse(f"{where}: compression={compression!r} is not one of {', '.join(_COMPRESSIONS)}.")
        self.servers = servers
        self.topic = topic
        self.messages = Messages(topic, topic_column, key, value, headers, partition)
        self.commits = commits
        self.dead_letters = checked_letters(where, dead_letters)
        self._delivery = Delivery.of(delivery, where)
        self._settings = checked_settings(options, where, FIXED)
        if compression is not None:
            self._settings["compression.type"] = compression
        self._chosen_id = self._settings.pop("transactional.id", None)
        self._limits: dict[str, TopicLimits] = {}
        self._asked = 0.0
        self._closed = threading.Event()

    def describe(self) -> str:
        topic = self.topic if self.topic is not None else f"from column {self.messages.topic_column}"
        return f"Kafka topic {topic} at {self.servers}"

    def check_stage(self, stage: NodeId, output_mode: str) -> None:
        if output_mode == "complete":
            raise whole_results(self, stage, "Use output_mode='update'")

    # ── start and end ───────────────────────────────────────────────────────────────────────────────────────────────

    def open(self, context: SinkContext) -> None:
        where = f"{self.describe()} of stage {context.stage!r}"
        need_package()
        self._context = context
        self._closed.clear()
        self.messages.check(context.schema, where)
        self._small = SmallBatches(self.messages)
        self._cluster = KafkaCluster(self.servers, self._settings)
        topics = self._cluster.topics()
        if self.topic is not None and self.topic not in topics:
            raise Misuse(
                f"{where}: there is no topic {self.topic!r}.",
                untouched="Nothing was started.",
                next="Make it with Kafka's own tools, with as many partitions as its consumers need.",
            )
        owner, transactional_id = self._id(context)
        kept = context.staging.parent / _OWNER
        check_no_copy(kept, where)
        log = CommitLog(self._cluster, self.commits, transactional_id)
        log.ensure(topics)
        if self.topic is not None:
            self._limits = self._cluster.limits([self.topic])
            self._asked = SYSTEM.monotonic()
        me = CommitRecord(owner, context.job, context.name, int(context.timeline), int(context.incarnation), -1)
        self._publisher = Publisher(self._cluster, log, me, self._settings, kept)
        self._publisher.open(_needs(PartSize(), self._limits))
        self._letters = Letters(self.dead_letters, context, where)
        self._staging = Staging(context, options={"compression": "snappy"})

    def recover(self, parts: Iterable[Part]) -> None:
        """Delete staged parts that are visible already; the rest is committed when the coordinator says so."""
        for part in parts:
            if self._publisher.visible(int(part.timeline)) >= part.through:
                self._forget(part)

    def close(self) -> None:
        self._closed.set()
        if hasattr(self, "_publisher"):
            self._publisher.close()

    def last_batch(self) -> int | None:
        staged = self._staging.last_batch()
        newest = max(-1 if staged is None else staged, self._publisher.visible(int(self._context.timeline)))
        return newest if newest >= 0 else None

    @steady
    def position(self, snapshot: SnapshotId) -> Json:
        last = self.last_batch()
        return {"letters": self._letters.position(-1 if last is None else last)}

    def outlook(self, position: Json, context: SinkContext, *, fork: bool, again: bool) -> SinkOutlook:
        if fork:
            return SinkOutlook(SinkFate.KEPT, "it gets every message after the snapshot, as the original's does")
        return SinkOutlook(SinkFate.KEPT, "messages from after the snapshot stay in the topic, and come once more")

    def restore(self, position: Json, context: SinkContext, fate: SinkFate) -> None:
        if self.dead_letters is not None and isinstance(position, dict):
            Letters(self.dead_letters, context, self.describe()).roll_back(position.get("letters"))

    # ── batches and parts ───────────────────────────────────────────────────────────────────────────────────────────

    def write(self, batch: DataFrame, batch_id: int) -> None:
        context = self._context
        if self._publisher.visible(int(context.timeline)) >= batch_id:
            return
        if self._delivery is not Delivery.ON_BATCH:
            self._count(self._staging.write(self._small.messages_of(batch), batch_id))
            return
        part = Part(f"batch {batch_id}", SnapshotId(0), context.timeline, batch_id - 1, batch_id)
        collected = self._small.collect(batch)
        if collected is not None:
            self._count(sum(b.num_rows for b in collected.batches))
            self._patiently(lambda: self._deliver(part, [collected]))
            return
        self._count(self._staging.write(self._small.messages_of(batch), batch_id, durable=False))
        self._patiently(lambda: self._deliver(part, self._staging.files(part)))
        self._staging.forget(part)

    def _count(self, rows: int) -> None:
        self.rows_taken = (self.rows_taken or 0) + rows

    def _deliver(self, part: Part, pieces: Sequence[Piece]) -> None:
        """One batch, at once."""
        limits = self._limits_of(pieces)
        rejected, size = self._sorted(pieces, limits)
        self._letters.put([letter for _, _, letter in rejected], part.through)
        self._publish(part, None, pieces, limits, size, _skipped(rejected))

    def _patiently(self, attempt: Callable[[], None]) -> None:
        """Try until the broker answers: the stage waits, its status says why, and nothing is lost."""
        failures = 0
        while True:
            try:
                attempt()
                self.trouble = ""
                return
            except Unreachable as error:
                if self.trouble != error.what:
                    _log.warning("%s: %s It is tried again until it succeeds.", self._context.stage, error.what)
                self.trouble = error.what
                failures += 1
                if self._closed.wait(backoff(failures, _FIRST_PAUSE, _LONGEST_PAUSE)):
                    raise

    def prepare(self, part: Part) -> Json:
        files = self._staging_of(part).files(part)
        limits = self._limits_of(files)
        rejected, size = self._sorted(files, limits)
        self._letters.hold(part, [letter for _, _, letter in rejected])
        return {
            "rows": size.rows,
            "bytes": size.bytes,
            "largest": size.largest,
            "rejected": len(rejected),
            "limits": {name: [found.partitions, found.max_bytes] for name, found in limits.items()},
        }

    def commit(self, part: Part, prepared: Json) -> None:
        if self._publisher.visible(int(part.timeline)) < part.through:
            files = self._staging_of(part).files(part)
            limits, size, some_rejected = _read(prepared)
            skipped: dict[Piece, frozenset[int]] = {}
            if some_rejected:
                self._letters.release(part)
                skipped = _skipped(self._sorted(files, limits)[0])
            self._publish(part, int(part.snapshot), files, limits, size, skipped)
        self._forget(part)

    def abort(self, part: Part, prepared: Json) -> None:
        self._letters.drop(part)
        self._staging_of(part).forget(part)

    def visible(self, part: Part, prepared: Json, context: SinkContext) -> bool | None:
        if not (context.staging.parent / _OWNER).exists():
            return False
        cluster = KafkaCluster(self.servers, self._settings)
        try:
            if self.commits not in cluster.topics():
                return False
            record = CommitLog(cluster, self.commits, self._id(context)[1]).read().get(int(part.timeline))
        except Unreachable:
            return None
        return record is not None and record.through >= part.through

    def by_hand(self, part: Part) -> str:
        return (
            f"If topic {self.commits!r} (read with isolation.level=read_committed) has a record of sink "
            f"{self._context.name!r}, timeline {part.timeline}, through {part.through} or more, the part is visible. "
            f"If not, its messages are the Parquet files below {self._staging_of(part).directory}."
        )

    # ── how ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _publish(
        self, part: Part, snapshot: int | None, pieces: Sequence[Piece], limits: Mapping[str, TopicLimits],
        size: PartSize, skipped: Mapping[Piece, frozenset[int]],
    ) -> None:  # fmt: skip
        def rows(producer: Any, wait: Any) -> int:
            return sum(send(producer, piece, self.topic, skipped.get(piece, frozenset()), wait) for piece in pieces)

        self._publisher.publish(int(part.timeline), part.through, snapshot, _needs(size, limits), rows)

    def _sorted(
        self, pieces: Sequence[Piece], limits: Mapping[str, TopicLimits]
    ) -> tuple[list[tuple[Piece, int, Rejected]], PartSize]:
        size = PartSize()
        return list(reject(pieces, self.topic, limits, size)), size

    def _limits_of(self, pieces: Sequence[Piece]) -> dict[str, TopicLimits]:
        """What the topics of these rows take. While that is known from before, the broker is not asked: a broker that
        is down must not keep a snapshot from completing."""
        wanted = {self.topic} if self.topic is not None else topics_of(pieces)
        if wanted - self._limits.keys() or SYSTEM.monotonic() - self._asked > _FRESH:
            try:
                self._limits.update(self._cluster.limits(sorted(t for t in {*wanted, *self._limits} if t is not None)))
                self._asked = SYSTEM.monotonic()
            except Unreachable:
                if wanted - self._limits.keys():
                    raise
        return {name: self._limits[name] for name in sorted(wanted & self._limits.keys())}

    def _id(self, context: SinkContext) -> tuple[str, str]:
        """Whose transactions these are, and the id that Kafka knows them by."""
        owner = _owner(context.staging.parent)
        return owner, str(self._chosen_id or f"strobe-{context.job}-{context.name}-{owner[:12]}")

    def _staging_of(self, part: Part) -> Staging:
        if part.timeline == self._context.timeline:
            return self._staging
        return Staging(self._context.of_timeline(part.timeline), sweep=False)

    def _forget(self, part: Part) -> None:
        self._letters.drop(part)
        self._staging_of(part).forget(part)


def _needs(size: PartSize, limits: Mapping[str, TopicLimits]) -> Needs:
    bounds = [found.max_bytes for found in limits.values()] or [Needs().largest_limit]
    return Needs(size.bytes, size.largest, max(bounds), min(bounds))


def _skipped(rejected: Iterable[tuple[Piece, int, Rejected]]) -> dict[Piece, frozenset[int]]:
    found: dict[Piece, set[int]] = {}
    for piece, row, _ in rejected:
        found.setdefault(piece, set()).add(row)
    return {piece: frozenset(rows) for piece, rows in found.items()}


def _read(prepared: Json) -> tuple[dict[str, TopicLimits], PartSize, bool]:
    try:
        assert isinstance(prepared, dict)
        limits = {str(name): TopicLimits(*map(int, found)) for name, found in prepared["limits"].items()}
        size = PartSize(*(int(prepared[name]) for name in ("rows", "bytes", "largest")))
        return limits, size, bool(prepared["rejected"])
    except (AssertionError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise Failed(f"What a snapshot says of a part of this Kafka sink makes no sense: {prepared!r}.") from error


def _owner(directory: Path) -> str:
    """The name of this sink in this home, made up once: jobs of one name in different homes are not the same."""
    path = directory / _OWNER
    try:
        return path.read_text()
    except FileNotFoundError:
        directory.mkdir(parents=True, exist_ok=True)
        write_durably(path, uuid.uuid4().hex)
        return path.read_text()


def need_package() -> None:
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        raise Misuse(
            "A Kafka sink or source needs the package confluent-kafka, which is not installed.",
            untouched="Nothing was started.",
            next="pip install 'strobe[kafka]'",
        ) from None

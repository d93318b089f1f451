"""Kafka as a source: Spark's own connector, with what a pipeline needs around it.

`read_kafka` returns a streaming DataFrame for a source stage. Spark keeps the offsets of every batch in the stage's
checkpoint, so they are part of each snapshot, and a restore reads on from them: Strobe adds nothing to that.

What it adds: the connector's jars, pinned and fetched (`jars`), unless the session has a connector already; a question
to the cluster before Spark asks, since Spark would wait for minutes and then say little; and defaults that go with
exactly once: committed messages only, and a failure instead of silence when messages are gone before they were read.
"""

from __future__ import annotations

import importlib.resources
import json
import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException

from strobe.hosts.spark.connectors.kafka.client import KafkaCluster, checked_settings
from strobe.hosts.spark.connectors.kafka.sink import need_package
from strobe.hosts.spark.jvm.jars import fetched
from strobe.model.errors import Misuse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_kafka"]

_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_FILES: Final = {  # librdkafka names a file, Java's client takes what is in it
    "ssl.ca.location": "ssl.truststore.certificates",
    "ssl.certificate.location": "ssl.keystore.certificate.chain",
    "ssl.key.location": "ssl.keystore.key",
}
_PATIENCE_MS: Final = "30000"
_SAME: Final = ("security.protocol", "ssl.endpoint.identification.algorithm", "client.id", "client.rack")

_log = logging.getLogger("strobe.kafka")


def read_kafka(
    spark: SparkSession,
    servers: str,
    topic: str | Iterable[str],
    *,
    starting: str | datetime | Mapping[Any, Any] = "earliest",
    max_rows_per_batch: int | None = None,
    headers: bool = False,
    security: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """A stream of the topic's messages, or of several topics': `key`, `value`, `topic`, `partition`, `offset`,
    `timestamp`, `timestampType`, and `headers` if asked for.

    `starting` counts when the stage has never run: "earliest", "latest", a time (the first messages as of then; at the
    end of partitions that have none), or offsets, `{partition: offset}` of a single topic or `{topic: {partition:
    offset}}`, also as the text that Spark's `startingOffsets` takes; -2 is the earliest, -1 the latest.
    `max_rows_per_batch` limits a micro-batch. `security` are librdkafka's settings, the same as those of a sink.
    `options` are those of Spark's Kafka source, `kafka.…` for the consumer itself; they come last.
    """
    topics = (topic,) if isinstance(topic, str) else tuple(topic)
    where = f"read_kafka({servers!r}, {', '.join(map(repr, topics))})"
    if not topics or not all(isinstance(t, str) and t for t in topics):
        raise Misuse(f"{where}: it needs the name of a topic.")
    if max_rows_per_batch is not None and max_rows_per_batch < 1:
        raise Misuse(f"{where}: max_rows_per_batch={max_rows_per_batch!r} must be at least 1.")
    settings = checked_settings(security, where, ("bootstrap.servers",))
    said = {name: str(value) for name, value in (options or {}).items()}
    need_package()
    _look(servers, topics, settings, said, where)
    ours = {
        "kafka.bootstrap.servers": servers,
        "subscribe": ",".join(topics),
        **_starting(starting, topics, where),
        "failOnDataLoss": "true",
        "includeHeaders": str(headers).lower(),
        "kafka.isolation.level": "read_committed",
        # A broker that is away for a moment is no reason to stop; one that stays away is: then the stage's status says
        # so, and it starts again, with pauses, for as long as it takes.
        "kafka.default.api.timeout.ms": _PATIENCE_MS,
        "kafka.request.timeout.ms": _PATIENCE_MS,
        "kafkaConsumer.pollTimeoutMs": _PATIENCE_MS,
        "fetchOffset.numRetries": "1",
        **({"maxOffsetsPerTrigger": str(max_rows_per_batch)} if max_rows_per_batch is not None else {}),
        **{f"kafka.{name}": value for name, value in _java_settings(settings, where).items()},
    }
    reader = spark.readStream.format("kafka").options(**{**ours, **said})
    try:
        return reader.load()
    except AnalysisException as error:  # a session may have a connector: of its own, or from an earlier call
        if "Failed to find data source" not in str(error):
            raise
    _add_connector(spark)
    return reader.load()


def _starting(starting: object, topics: tuple[str, ...], where: str) -> dict[str, str]:
    """The options of Spark's source that say where it begins."""
    if isinstance(starting, datetime):
        if starting.tzinfo is None:
            raise Misuse(f"{where}: starting={starting} has no time zone.", next="Add one, such as datetime.UTC.")
        milliseconds = str(int(starting.timestamp() * 1000))
        return {"startingTimestamp": milliseconds, "startingOffsetsByTimestampStrategy": "latest"}
    if isinstance(starting, Mapping):
        nested = any(isinstance(value, Mapping) for value in starting.values())
        if not starting or (not nested and len(topics) > 1):
            raise Misuse(
                f"{where}: starting={dict(starting)!r} does not say where each topic begins.",
                next="Give {topic: {partition: offset}}, with every partition.",
            )
        return {"startingOffsets": json.dumps(dict(starting) if nested else {topics[0]: dict(starting)})}
    if not isinstance(starting, str):
        raise Misuse(f"{where}: starting={starting!r} is not a start.", next="Use earliest, latest, a time or offsets.")
    return {"startingOffsets": starting}


def _look(servers: str, topics: tuple[str, ...], settings: dict[str, Any], said: Mapping[str, str], where: str) -> None:
    """Ask the cluster before Spark does: does it answer, and does it have the topics?"""
    if any(name.startswith(("kafka.sasl.", "kafka.ssl.", "kafka.security.")) for name in said):
        _log.info("%s: security is set for Spark's consumer alone, so the broker is not asked beforehand", where)
        return
    known = KafkaCluster(servers, settings).topics()
    missing = [t for t in topics if t not in known]
    if missing and not {"subscribePattern", "assign"} & set(said):
        raise Misuse(
            f"{where}: there is no topic {', '.join(map(repr, missing))}.",
            untouched="Nothing was started.",
            next="Make it with Kafka's own tools, or fix the name.",
        )


def _add_connector(spark: SparkSession) -> None:
    with importlib.resources.as_file(importlib.resources.files(__package__) / "kafka.lock") as lock:
        for jar in fetched(Path(lock)):
            spark.sql(f"ADD JAR '{jar.as_uri()}'")


def _java_settings(settings: Mapping[str, Any], where: str) -> dict[str, str]:
    """librdkafka's settings under the names of Kafka's Java client, which Spark uses."""
    found = {name: str(settings[name]) for name in _SAME if name in settings}
    mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms"))
    if "sasl.username" in settings:
        kind = str(mechanism or "PLAIN")
        if kind not in _MODULES:
            raise Misuse(
                f"{where}: sasl.mechanism {kind!r} cannot be passed on to Spark's consumer.",
                next="Give it options with kafka.sasl.… as Kafka's Java client takes them.",
            )
        user, password = (_quoted(str(settings.get(n, ""))) for n in ("sasl.username", "sasl.password"))
        found["sasl.mechanism"] = kind
        found["sasl.jaas.config"] = f"{_MODULES[kind]} required username={user} password={password};"
    for theirs, java in _FILES.items():
        if theirs in settings:
            try:
                found[java] = Path(str(settings[theirs])).read_text()
            except OSError as error:
                raise Misuse(f"{where}: {theirs} cannot be read: {error.strerror}.") from None
    if "ssl.truststore.certificates" in found:
        found["ssl.truststore.type"] = "PEM"
    if "ssl.keystore.key" in found:
        found["ssl.keystore.type"] = "PEM"
    if "ssl.key.password" in settings:
        found["ssl.key.password"] = str(settings["ssl.key.password"])
    return found


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'

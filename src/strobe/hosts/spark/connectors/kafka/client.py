"""How Strobe speaks to a Kafka cluster: settings, reachability, what topics allow, and errors in words.

Settings are those of librdkafka (`security.protocol`, `sasl.username`, `ssl.ca.location`, …); the same dictionary
serves sink and source. No value of a setting is ever part of a message: what librdkafka and brokers say is shown with
every secret in it masked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from strobe.hosts.shared.clock import SYSTEM
from strobe.hosts.spark.connectors.base import Unreachable
from strobe.model.errors import Failed, Misuse, StrobeError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient, ClusterMetadata

__all__ = ["KafkaCluster", "TopicLimits", "checked_settings"]

REACH: Final = 10.0  # seconds to get an answer at a start
ASK: Final = 5.0  # seconds for a question while running
_LARGEST: Final = 1_000_000_000  # librdkafka's own bound
_DEFAULT_BYTES: Final = 1_000_000
_SECRETS: Final = ("password", "secret", "token", "jaas", "key.pem", "private")
_JAVA_NAMES: Final = {"max.request.size": "message.max.bytes"}

_log = logging.getLogger("strobe.kafka")
# What librdkafka would print: all of it comes back as an error of some call, in our words.
_quiet = logging.getLogger("strobe.kafka.librdkafka")
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """What a topic takes: so many partitions, messages of so many bytes."""

    partitions: int
    max_bytes: int


def checked_settings(options: Mapping[str, Any] | None, where: str, taken: Collection[str] = ()) -> dict[str, Any]:
    """Settings for librdkafka. Misuse for those that a user must not set (`taken`)."""
    settings: dict[str, Any] = {}
    for name, value in (options or {}).items():
        if not isinstance(name, str) or not isinstance(value, str | bool | int | float):
            raise Misuse(f"{where}: options has {name!r}, which is not a setting of a Kafka client.")
        settings[_JAVA_NAMES.get(name, name)] = value
    for name in taken:
        if name in settings:
            raise Misuse(f"{where}: options must not say {name!r}: the guarantee rests on it.", next="Leave it out.")
    return settings


class KafkaCluster:
    """One cluster as one client sees it. Makes no connection until it is asked something."""

    def __init__(self, servers: str, settings: Mapping[str, Any]) -> None:
        self.servers = servers
        self._settings = dict(settings)
        self._heard: list[KafkaError] = []
        self._admin: AdminClient | None = None

    def settings(self, **more: Any) -> dict[str, Any]:
        """The settings for another client of this cluster; names with _ for dots. The user's own settings come last."""
        ours = {name.replace("_", "."): value for name, value in more.items()}
        quiet = {"log_level": 2, "logger": _quiet}
        return {**quiet, **ours, **self._settings, "bootstrap.servers": self.servers, "error_cb": self.hear}

    def hear(self, error: KafkaError) -> None:
        """Called with librdkafka's own log messages: often the only place where the cause is named."""
        self._heard = [*self._heard[-9:], error]
        _log.debug("%s: %s", self.servers, self.blot(error.str()))

    def blot(self, text: str) -> str:
        for name, value in self._settings.items():
            if any(word in name for word in _SECRETS) and isinstance(value, str) and value:
                text = text.replace(value, "…")
        return text

    # ── questions ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            from confluent_kafka.admin import AdminClient

            self._admin = self.made(lambda: AdminClient(self.settings(socket_connection_setup_timeout_ms=5000)))
        return self._admin

    def made(self, make: Callable[[], Any]) -> Any:
        """A client; Misuse if librdkafka does not take its settings."""
        from confluent_kafka import KafkaException

        try:
            return make()
        except (KafkaException, TypeError, ValueError) as error:
            said = error.args[0].str() if isinstance(error, KafkaException) else str(error)
            raise Misuse(
                f"Kafka at {self.servers}: the client does not take its settings: {self.blot(said)}",
                untouched="Nothing was started.",
                next="Settings are named as librdkafka names them.",
            ) from None

    def reach(self) -> ClusterMetadata:
        """The cluster's topics. Unreachable, with what was tried, if nobody answers in time."""
        from confluent_kafka import KafkaError, KafkaException

        deadline = SYSTEM.monotonic() + REACH
        while True:
            try:
                found: ClusterMetadata = self.admin.list_topics(timeout=min(2.0, REACH))
                return found
            except KafkaException as error:
                self.admin.poll(0)
                refused = [e for e in self._heard if e.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL)]
                if refused or SYSTEM.monotonic() > deadline:
                    raise self.explain(refused[-1] if refused else error.args[0], "It cannot be reached") from None

    def topics(self) -> dict[str, int]:
        """How many partitions each topic has."""
        return {name: len(topic.partitions) for name, topic in self.reach().topics.items() if topic.error is None}

    def limits(self, names: Collection[str]) -> dict[str, TopicLimits]:
        """What each of these topics takes; those that do not exist are left out."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import ConfigResource, ResourceType

        partitions = self.topics()
        known = [name for name in names if name in partitions]
        asked = self.admin.describe_configs(
            [ConfigResource(ResourceType.TOPIC, name) for name in known], request_timeout=ASK
        ) if known else {}  # fmt: skip
        found = {}
        for resource, answer in asked.items():
            try:
                largest = min(int(answer.result()["max.message.bytes"].value), _LARGEST)
            except (KafkaException, KeyError, TypeError):  # a user who may write may still not be allowed to ask
                largest = int(self._settings.get("message.max.bytes", _DEFAULT_BYTES))
            ours = int(self._settings.get("message.max.bytes", largest))
            found[resource.name] = TopicLimits(partitions[resource.name], min(largest, ours))
        return found

    def cleanup_policy(self, topic: str) -> set[str] | None:
        """How the topic deletes old records; None if we may not ask."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import ConfigResource, ResourceType

        asked = self.admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)], request_timeout=ASK)
        try:
            (answer,) = asked.values()
            return {word.strip() for word in str(answer.result()["cleanup.policy"].value).split(",")}
        except (KafkaException, KeyError, TypeError):
            return None

    # ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def explain(self, error: KafkaError, what: str) -> StrobeError:
        """The error in words. Its class says whether trying again may help."""
        from confluent_kafka import KafkaError

        code = error.code()
        vague = code in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN)
        heard = [e for e in self._heard if e.code() != KafkaError._ALL_BROKERS_DOWN]
        said = self.blot((heard[-1] if vague and heard else error).str())
        message = f"Kafka at {self.servers}: {what}: {said}"
        if code in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED):
            return Failed(
                message, next="Check user, password and mechanism (sasl.username, sasl.password, sasl.mechanism)."
            )
        if code in _forbidden(KafkaError):
            return Failed(message, next="Ask for the right to do this (an ACL), or use another name.")
        if code == KafkaError.INVALID_TIMESTAMP:
            return Unreachable(
                message,
                next="Set this machine's clock: it differs from the broker's by more than the topic takes "
                "(message.timestamp.after.max.ms, an hour as a rule).",
            )
        if vague or error.retriable() or code in _later(KafkaError):
            return Unreachable(message, next="Check the address, that the broker runs, and security.protocol.")
        return Failed(message)


def _forbidden(errors: type[KafkaError]) -> tuple[int, ...]:
    return (
        errors.TOPIC_AUTHORIZATION_FAILED, errors.CLUSTER_AUTHORIZATION_FAILED,
        errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, errors.GROUP_AUTHORIZATION_FAILED,
    )  # fmt: skip


def _later(errors: type[KafkaError]) -> tuple[int, ...]:
    return (
        errors._TIMED_OUT_QUEUE, errors._MSG_TIMED_OUT, errors._STATE, errors.COORDINATOR_LOAD_IN_PROGRESS,
        errors.COORDINATOR_NOT_AVAILABLE, errors.NOT_COORDINATOR, errors.LEADER_NOT_AVAILABLE,
        errors.NOT_LEADER_FOR_PARTITION, errors.REQUEST_TIMED_OUT, errors.NOT_ENOUGH_REPLICAS,
        errors.CONCURRENT_TRANSACTIONS, errors.FENCED_LEADER_EPOCH, errors.UNKNOWN_LEADER_EPOCH, errors._RESOLVE,
    )  # fmt: skip

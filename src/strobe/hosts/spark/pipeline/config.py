"""Settings of a pipeline. Durations are seconds. Names and defaults are Flink's where a Flink user expects them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from strobe.model.backoff import backoff
from strobe.model.errors import Misuse
from strobe.protocol.barriers import BarrierMode
from strobe.protocol.coordinator.messages import CoordinatorSettings

__all__ = ["CheckpointConfig", "RestartPolicy", "RetentionOnCancel"]


_LONGEST = 100 * 366 * 86_400  # seconds, for ages: a hundred years
_MOST_INTERVALS = 1000  # that a batch may take
# seconds. A micro-batch with state costs 0.25 to 0.35 s, whatever it reads: in shorter batches that would be felt.
_SHORTEST_BATCH = 4.0


class RetentionOnCancel(Enum):
    RETAIN = "retain"
    DELETE = "delete"

    @classmethod
    def of(cls, word: str) -> RetentionOnCancel:
        try:
            return cls(word)
        except ValueError:
            known = ", ".join(v.value for v in cls)
            raise Misuse(f"Checkpoints cannot be treated as {word!r} at a cancel: it must be one of {known}.") from None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """When and how the whole graph is checkpointed.

    `interval` None: only when asked. `mode`: "aligned", "unaligned", or "aligned-with-timeout", which turns unaligned
    after `alignment_timeout`. None leaves it to the pipeline (`pipeline.cut_mode`): unaligned, unless readers of what
    sinks deliver on snapshot could tell. `retention_on_cancel` is "retain" here and "delete" in Flink: a cancel should
    not take the last checkpoint with it.

    `batch_share`: a stage reads of a backlog what it can work through in about this share of the interval, or in
    four seconds if that is more; None does not limit it.

    At least `retained` checkpoints are kept; with `retained_age`, all that are younger than so many seconds too.
    `store` says where checkpoints go: None is the home directory, else another directory or `s3://bucket/prefix`.
    `sign_with` is a private key for Ed25519 that checkpoints and savepoints are signed with: a PEM file, or `env:NAME`.
    """

    interval: float | None = 10.0
    min_pause: float = 0.0
    timeout: float = 600.0
    max_concurrent: int = 1
    tolerable_failures: int = 0
    retained: int = 1
    retention_on_cancel: str = "retain"
    mode: str | None = None
    alignment_timeout: float = 30.0
    retained_age: float | None = None
    store: str | None = None
    sign_with: str | None = None
    batch_share: float | None = 0.5

    def __post_init__(self) -> None:
        for name, values in (("mode", BarrierMode), ("retention_on_cancel", RetentionOnCancel)):
            if getattr(self, name) not in {v.value for v in values} and (name, getattr(self, name)) != ("mode", None):
                known = ", ".join(v.value for v in values)
                raise Misuse(f"CheckpointConfig({name}={getattr(self, name)!r}): it must be one of {known}.")
        for name in ("interval", "min_pause", "timeout", "alignment_timeout", "retained_age", "batch_share"):
            value = getattr(self, name)
            if value is not None and not _is_number(value):
                kind = "a number" if name == "batch_share" else "a number of seconds"
                raise Misuse(f"CheckpointConfig({name}={value!r}): it must be {kind}.")
        for name in ("interval", "timeout"):
            value = getattr(self, name)
            if value is not None and round(value * 1000) < 1:
                none = ", or None for no periodic ones" if name == "interval" else ""
                raise Misuse(f"CheckpointConfig({name}={value!r}): it must be at least 0.001 seconds{none}.")
        if self.batch_share is not None and not 0 < self.batch_share <= _MOST_INTERVALS:
            raise Misuse(
                f"CheckpointConfig(batch_share={self.batch_share!r}): it must be more than 0 and at most "
                f"{_MOST_INTERVALS}.",
                next="None lets a batch read all that waits.",
            )
        if self.alignment_timeout < 0:
            raise Misuse(f"CheckpointConfig(alignment_timeout={self.alignment_timeout!r}): it must be 0 or more.")
        if self.retained_age is not None and not 0 <= self.retained_age <= _LONGEST:
            raise Misuse(
                f"CheckpointConfig(retained_age={self.retained_age!r}): it must be from 0 to {_LONGEST:,} seconds."
            )
        if self.store is not None and (not isinstance(self.store, str) or not self.store.strip()):
            raise Misuse(
                f"CheckpointConfig(store={self.store!r}): it must be a directory, or s3://bucket/prefix.",
                next="Leave it out to keep checkpoints in the home directory.",
            )
        if self.sign_with is not None and (not isinstance(self.sign_with, str) or not self.sign_with.strip()):
            raise Misuse(
                f"CheckpointConfig(sign_with={self.sign_with!r}): it must be the path of a private key, or env:NAME.",
                next="Leave it out to sign nothing.",
            )
        self.coordinator()  # says what is wrong with the rest

    def coordinator(self) -> CoordinatorSettings:
        return CoordinatorSettings(
            interval=None if self.interval is None else round(self.interval * 1000),
            min_pause=round(self.min_pause * 1000),
            timeout=round(self.timeout * 1000),
            max_concurrent=self.max_concurrent,
            tolerable_failures=self.tolerable_failures,
            retained=self.retained,
            everywhere=self.barrier_mode is BarrierMode.UNALIGNED,
        )

    @property
    def batch_seconds(self) -> float | None:
        """How long a batch should take that has more to read than it can work through; None: as long as it takes."""
        if self.interval is None or self.batch_share is None:
            return None
        return max(self.interval * self.batch_share, _SHORTEST_BATCH)

    @property
    def barrier_mode(self) -> BarrierMode:
        """The mode as the protocol knows it; where the pipeline leaves it open, unaligned."""
        return BarrierMode.UNALIGNED if self.mode is None else BarrierMode(self.mode)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How a stage that fails is brought back: after a pause that doubles up to a limit, so many times in a row.

    A stage that commits a batch after a restart has recovered, and the count starts again. A failure because a system
    outside does not answer is not counted, unless there are no attempts at all.
    """

    attempts: int = 5
    first_pause: float = 0.5
    longest_pause: float = 30.0

    def __post_init__(self) -> None:
        if not all(map(_is_number, (self.attempts, self.first_pause, self.longest_pause))):
            raise Misuse(f"{self!r}: attempts, first_pause and longest_pause must be numbers.")
        if self.attempts < 0 or self.first_pause < 0 or self.longest_pause < self.first_pause:
            raise Misuse(f"{self!r}: attempts and first_pause must be 0 or more, longest_pause at least first_pause.")

    def pause(self, failures: int) -> float:
        """How long to wait after so many failures in a row (1 for the first)."""
        return backoff(failures, self.first_pause, self.longest_pause)

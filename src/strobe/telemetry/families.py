"""Metrics as values: what a metric is called and means, and the samples of a moment.

No Prometheus in here: `exposition` writes families in its format. A metric is declared once, together with how its
value is taken from what it is about, so that names, help and the reference page cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeAlias, TypeVar

__all__ = ["Family", "Metric", "MetricKind", "Of", "Sample", "Values", "gather", "merge"]


class MetricKind(Enum):
    GAUGE = "gauge"
    COUNTER = "counter"  # rises; begins again when the driver does


@dataclass(frozen=True, slots=True)
class Metric:
    """`labels` in the order in which samples give them. `flink` is what Flink calls it, if it has it."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...]
    flink: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    labels: tuple[str, ...]
    value: float


@dataclass(frozen=True, slots=True)
class Family:
    metric: Metric
    samples: tuple[Sample, ...]


Subject = TypeVar("Subject")
# One value, or one for each value of the metric's last label; None is not a sample.
Values: TypeAlias = float | Mapping[str, float | None] | None


@dataclass(frozen=True, slots=True)
class Of(Generic[Subject]):
    """A metric, and how it is taken from what it is about."""

    metric: Metric
    value: Callable[[Subject], Values]


def gather(table: Iterable[Of[Subject]], subjects: Iterable[tuple[tuple[str, ...], Subject]]) -> list[Family]:
    """One family for each row of the table that has a sample; `subjects` come with their labels."""
    known = list(subjects)
    families = []
    for row in table:
        samples = tuple(sample for labels, subject in known for sample in _samples(labels, row.value(subject)))
        if samples:
            families.append(Family(row.metric, samples))
    return families


def _samples(labels: tuple[str, ...], values: Values) -> list[Sample]:
    if isinstance(values, Mapping):
        return [Sample((*labels, each), value) for each, value in values.items() if value is not None]
    return [] if values is None else [Sample(labels, values)]


def merge(families: Iterable[Family]) -> list[Family]:
    """Families of several jobs as one set: each name once, in the order in which they first come."""
    found: dict[str, Family] = {}
    for family in families:
        before = found.get(family.metric.name)
        samples = family.samples if before is None else (*before.samples, *family.samples)
        found[family.metric.name] = Family(family.metric, samples)
    return list(found.values())

"""Metrics of an invariant, the same for a job and for a live system but for their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from strobe.telemetry.families import Metric, MetricKind, Of, Values

__all__ = ["Judged", "invariant_metrics"]


class Judged(Protocol):
    """How an invariant is doing. `outcome` is empty as long as it was not asked."""

    @property
    def outcome(self) -> str: ...
    @property
    def snapshot(self) -> int | None: ...
    @property
    def violations(self) -> int: ...
    @property
    def skipped(self) -> int: ...


def invariant_metrics(prefix: str, owner: str, snapshot: str, skipped: str) -> tuple[Of[Judged], ...]:
    """`owner` is the label of what has the invariant; `snapshot` is what a snapshot is called there, `skipped` says
    which ones are not asked."""

    def of(name: str, kind: MetricKind, help: str, value: Callable[[Judged], Values]) -> Of[Judged]:
        return Of(Metric(f"{prefix}_{name}", kind, help, (owner, "invariant")), value)

    many = f"{snapshot.capitalize()}s"
    return (
        of("violated", MetricKind.GAUGE, "1 if the last verdict is that it is violated, 0 if it holds",
           lambda i: {"holds": 0.0, "violated": 1.0}.get(i.outcome)),
        of("failed", MetricKind.GAUGE, "1 if the last attempt to evaluate it failed, 0 if there was a verdict",
           lambda i: float(i.outcome == "failed") if i.outcome else None),
        of("last_checkpoint_id", MetricKind.GAUGE, f"The {snapshot} that the last verdict is about",
           lambda i: None if i.snapshot is None else float(i.snapshot)),
        of("num_violations_total", MetricKind.COUNTER, f"{many} at which it was violated",
           lambda i: float(i.violations)),
        of("num_skipped_total", MetricKind.COUNTER, f"{many} that {skipped}", lambda i: float(i.skipped)),
    )  # fmt: skip

"""How often Spark asks a stage's sources for more when there is nothing to read.

Spark asks without end: after a pause (its `pollingDelay`) it asks every source of the query again. Each question has
its price: one to a channel goes through a process and the driver, a directory is listed, Kafka is asked over the
network. So an idle job is as expensive as its questions are many.

*Channels only.* The driver knows when there is something to read, so it holds the question until then (`stage.life`),
for at most a second, and the pause is short: it is waited for only after the last rows of a burst.

*Spark's own sources.* Nobody says when they have more. The pause is longer than Spark's own 10 ms. It comes only after
a look that found nothing: a busy stage does not notice it, and the first row after a short quiet time waits half of it.
In a long one the pause grows (`stage.pausing`).

*Both.* While a question of the channel is held, the source is not asked; so it is not held, and the session's pause, a
short one, counts for both.

With a trigger of the user's own the questions come when that says, and are answered at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from strobe.hosts.spark.jvm.session import DEFAULT_POLLING_DELAY, POLLING_DELAY
from strobe.hosts.spark.pipeline.pipeline import StageSpec

__all__ = ["growing_from", "hold_of", "polling"]

_HOLD: Final = 1.0  # seconds
_AFTER_A_HOLD: Final = "5ms"
_SOURCES: Final = "100ms"


def hold_of(spec: StageSpec, *, has_source: bool) -> float:
    """For how many seconds a question of the stage's query may be held; 0: not at all. While it is, the query's other
    sources are not asked."""
    return _HOLD if spec.inputs and not has_source and not spec.trigger else 0.0


def polling(spec: StageSpec, session: str | None, *, has_source: bool) -> dict[str, str]:
    """Spark's setting for the stage's query, if it is another one than the session's; what a user has set stays."""
    if session != DEFAULT_POLLING_DELAY or spec.trigger or (spec.inputs and has_source):
        return {}
    return {POLLING_DELAY: _SOURCES if has_source else _AFTER_A_HOLD}


def growing_from(pause: Mapping[str, str], conf: Mapping[str, str], *, has_source: bool) -> int | None:
    """The milliseconds from which the query's pause may grow: what `polling` gives for sources, unless the user's own
    setting for the stage counts."""
    return int(_SOURCES.removesuffix("ms")) if has_source and pause and POLLING_DELAY not in conf else None

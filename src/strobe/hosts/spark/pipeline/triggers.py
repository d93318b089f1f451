"""Triggers: which of Spark's a stage can have, and what `availableNow` means for a graph.

A stage without `reads` hands `availableNow` to Spark: its query ends with what its sources had at the start. A stage
that reads others cannot do so, since Spark would end it before they do. Its query runs on, and is over when those that
it reads have ended, their rows are processed, and its own sources have no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from strobe.model.errors import Misuse
from strobe.model.ids import NodeId

__all__ = ["check_trigger", "never_ends"]

TRIGGERS: Final = ("processingTime", "availableNow")


def check_trigger(trigger: Mapping[str, Any], where: str) -> None:
    if not isinstance(trigger, Mapping) or len(trigger) > 1 or any(key not in TRIGGERS for key in trigger):
        raise Misuse(
            f"{where}: trigger={trigger!r} is not legal.",
            next='Use {"processingTime": "1 second"} or, for a source that ends, {"availableNow": True}.',
        )


def never_ends(uid: NodeId, read: NodeId) -> Misuse:
    return Misuse(
        f"Stage {uid!r} has the trigger availableNow, but it reads {read!r}, which never ends.",
        untouched="Nothing was started.",
        next="Give availableNow to every stage that has a source; the job ends when all of them have.",
    )

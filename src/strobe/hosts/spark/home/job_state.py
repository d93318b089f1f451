"""What a job can be, and what it is called while it is on its way to its end."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

__all__ = ["UNFINISHED", "JobState"]


class JobState(enum.Enum):
    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"  # every source has ended, and everything is processed
    FAILED = "failed"
    CANCELED = "canceled"
    STOPPED = "stopped"

    @property
    def over(self) -> bool:
        return self not in (JobState.STARTING, JobState.RUNNING)

    def shown(self, *, ended: bool) -> str:
        """For people. A job that is to end has stages that are in a batch, and sinks that commit: that may take long,
        and it is still there meanwhile."""
        return _ENDING[self] if self.over and not ended else self.value


_ENDING: Final[Mapping[JobState, str]] = {
    JobState.FINISHED: "finishing",
    JobState.FAILED: "failing",
    JobState.CANCELED: "canceling",
    JobState.STOPPED: "stopping",
}
# What a driver says of itself that has not come to its end: if it is gone, it was killed.
UNFINISHED: Final = (JobState.STARTING.value, JobState.RUNNING.value, *_ENDING.values())

"""Draining a job: its sources end, its channels run empty, its event time comes to an end; then nothing is left to do.

Upstream first. A source stage is ended between two batches. Once nothing moves any more, each stage in the order of
the graph runs its last batch (`last_batch`), which closes its windows and fires its event-time timers; what that brings
runs through the stages behind it before theirs. A stage that is drained has no query any more, but its agent still
takes part in snapshots. Processing-time timers do not fire, and rows that a last batch sends back through a feedback
stay in the channel: they are part of the savepoint.

If the savepoint that follows fails, the stages start again where they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from strobe.hosts.shared.clock import SYSTEM, Clock
from strobe.hosts.spark import crash_points
from strobe.hosts.spark.stage.runner import StageRunner, StageState
from strobe.model.errors import Failed
from strobe.model.ids import NodeId

__all__ = ["Drain"]

_log = logging.getLogger("strobe.drain")
_POLL = 0.1
_CALM = 3  # looks in a row at which nothing moved


class Drain:
    def __init__(
        self,
        order: Sequence[NodeId],
        runners: Mapping[NodeId, StageRunner],
        over: Callable[[], str | None],
        clock: Clock = SYSTEM,
    ) -> None:
        """`order`: upstream first. `over` says what has become of a job that no longer runs."""
        self._order = order
        self._runners = runners
        self._over = over
        self._clock = clock
        self._drained: list[StageRunner] = []
        self.under_way = False

    def run(self) -> None:
        self.under_way = True
        sources = [self._runners[uid] for uid in self._order if not self._runners[uid].spec.inputs]
        rest = [self._runners[uid] for uid in self._order if self._runners[uid].spec.inputs]
        for runner in sources:
            runner.halt()
        crash_points.point("drain.sources-ended")
        if not any(r.has_source for r in rest):
            self._await_calm(rest)  # behind one that has, there is no calm until that one is drained
        crash_points.point("drain.channels-empty")
        for runner in (*sources, *rest):
            if runner.spec.inputs:
                self._await_calm([runner])
            _log.info("stage %s is drained", runner.spec.uid)
            self._drained.append(runner)
            runner.drain()

    def undo(self) -> None:
        """Go on as if nothing had been ordered."""
        for uid in self._order:
            self._runners[uid].resume()
        self._drained.clear()
        self.under_way = False

    def _await_calm(self, runners: Sequence[StageRunner]) -> None:
        calm = 0
        while calm < _CALM:
            over = self._over()
            if over is not None:
                raise Failed(f"The job was {over} while it was being drained.")
            resting = all(_rests(r) and r.state is StageState.RUNNING for r in runners)
            calm = calm + 1 if resting else 0
            self._clock.sleep(_POLL)


def _rests(runner: StageRunner) -> bool:
    """Nothing is left in its channels. A stage with a source of its own goes on reading that until it is drained."""
    return runner.agent.lag() == (0, 0) if runner.has_source else runner.agent.idle

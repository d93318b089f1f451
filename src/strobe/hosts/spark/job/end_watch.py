"""The end that a job comes to by itself: its sources have ended, its channels are empty, nothing is due any more; and
what every end closes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from strobe.hosts.spark.job.drain import Drain
from strobe.hosts.spark.stage.runner import StageRunner, StageState
from strobe.model.errors import StrobeError
from strobe.model.ids import NodeId

__all__ = ["close_stages", "stop_stages", "watch_for_end"]

_REST_POLL: Final = 0.1  # seconds
_CALM: Final = 3  # looks in a row


def watch_for_end(
    runners: Mapping[NodeId, StageRunner], drain: Drain, over: threading.Event, end: Callable[[], bool]
) -> None:
    """Call `end` in a thread of its own once nothing is left to do, and again if that did not work."""
    sources = [r for r in runners.values() if not r.spec.inputs]
    rest = [r for r in runners.values() if r.spec.inputs]
    if any((r.has_source and not r.spec.ends) or r.agent.stage.never_rests for r in rest):
        return  # there is always more to come: from a source, or from the clock

    def watch() -> None:
        calm = 0
        while not over.wait(_REST_POLL):
            ended = not drain.under_way and all(r.state is StageState.ENDED for r in sources)
            calm = calm + 1 if ended and all(_rests(r) for r in rest) else 0
            if calm >= _CALM:
                if end():
                    return
                calm = 0

    threading.Thread(target=watch, name="watch", daemon=True).start()


def _rests(runner: StageRunner) -> bool:
    """A stage that cannot say so does not rest. Its error is its runner's to report; here it would end the watch, and
    the job would not end by itself once the stage had recovered."""
    try:
        return runner.state is StageState.RUNNING and runner.agent.idle
    except StrobeError:
        return False


def stop_stages(runners: Mapping[NodeId, StageRunner]) -> None:
    """All at once: each waits for its batch."""
    with ThreadPoolExecutor(len(runners) or 1, thread_name_prefix="stop") as pool:
        list(pool.map(StageRunner.stop, runners.values()))


def close_stages(runners: Mapping[NodeId, StageRunner]) -> None:
    """The sinks and channels of stages that have ended."""
    for runner in runners.values():
        for sink in runner.spec.sinks:
            sink.close()
        if runner.output is not None:
            runner.output.close()

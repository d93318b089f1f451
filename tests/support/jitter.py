"""A pytest plugin that delays Spark's batches at random, to find tests that pass only because one stage is faster than
another: `make test ARGS="-p tests.support.jitter tests/hosts/spark"`.

It reaches the jobs that run in the test's own process; a driver that a test starts is not slowed down. The seed is
printed, and STROBE_JITTER=N repeats it as far as threads can be repeated. A test is delayed for half a minute at most:
some run thousands of batches, without Spark.
"""

from __future__ import annotations

import os
import random
import time

import pytest

from strobe.hosts.spark.stage.agent import StageAgent
from strobe.model.ids import NodeId

__all__ = ["pytest_configure", "pytest_report_header", "pytest_runtest_setup"]

_SEED = int(os.environ.setdefault("STROBE_JITTER", str(random.randrange(10**6))))
_SHARE, _LONGEST = 0.4, 1.5  # of what is delayed, and for how many seconds at most
_MOST = 30.0  # seconds of one test
_left = [0.0]


def pytest_report_header() -> str:
    return f"batches are delayed at random: STROBE_JITTER={_SEED}"


def pytest_runtest_setup() -> None:
    _left[0] = _MOST


def pytest_configure(config: pytest.Config) -> None:
    chance = random.Random(_SEED)
    latest, begin, end = StageAgent.latest, StageAgent.begin_batch, StageAgent.end_batch

    def delay() -> None:
        if _left[0] > 0 and chance.random() < _SHARE:
            seconds = chance.random() * _LONGEST
            _left[0] -= seconds
            time.sleep(seconds)

    def delayed_latest(self: StageAgent, reader: str, producer: NodeId, start: int) -> int:
        delay()
        return latest(self, reader, producer, start)

    def delayed_begin(self: StageAgent, batch: int) -> None:
        delay()
        begin(self, batch)

    def delayed_end(self: StageAgent, batch: int, *, failed: bool = False) -> None:
        delay()
        end(self, batch, failed=failed)

    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    patch.setattr(StageAgent, "latest", delayed_latest)
    patch.setattr(StageAgent, "begin_batch", delayed_begin)
    patch.setattr(StageAgent, "end_batch", delayed_end)

"""Where the host meets the simulation: its clock, its threads, its disk, and Spark.

Each replacement is made in one place and taken back at the end. Threads and queues are replaced in every module of the
host that has them by name.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, cast
from unittest import mock

from pyspark.sql import DataFrame

from strobe.hosts.shared.clock import SYSTEM
from strobe.hosts.spark import crash_points
from strobe.hosts.spark.channel import writer as channel_writer
from strobe.hosts.spark.connectors import staging
from strobe.hosts.spark.job import job as job_module
from strobe.hosts.spark.job.observer import JobObserver
from strobe.hosts.spark.restore import resume
from strobe.hosts.spark.stage import runner as stage_runner
from strobe.hosts.spark.stage import writing as stage_writing
from strobe.hosts.spark.stage.assemble import AssembledStage, DraftStage
from strobe.hosts.spark.stage.inbox import Question
from strobe.store import s3
from tests.hostsim.bucket import Bucket
from tests.hostsim.disk import Disk, Replacement, replaced
from tests.hostsim.scheduler import Killed, Scheduler
from tests.hostsim.spark import Frame, NoWatermarks, PlayedRunner, Table, read_rows, write_files, write_parquet
from tests.hostsim.threads import Clock, Pool, queue_module, threading_module

__all__ = ["installed"]

_HOST = ("strobe.store", "strobe.hosts.spark", "strobe.hosts.shared")
_NAMES = ("threading", "queue", "ThreadPoolExecutor", "weakref")


@contextlib.contextmanager
def installed(
    scheduler: Scheduler, disk: Disk, bucket: Bucket, supply: Callable[[str], tuple[int, bool]]
) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced((s3, "_client", bucket.client)))
        stack.enter_context(replaced(*_threads(scheduler), *_clock(scheduler), *_spark(scheduler, supply)))
        stack.enter_context(mock.patch.dict(os.environ))
        stack.enter_context(disk.installed())
        yield


def _threads(scheduler: Scheduler) -> Iterator[Replacement]:
    names = {
        "threading": threading_module(scheduler),
        "queue": queue_module(scheduler),
        "ThreadPoolExecutor": partial(Pool, scheduler),
        # What is to be done when an object goes is done when the host says so, and never for a process that was killed.
        "weakref": SimpleNamespace(finalize=lambda of, act, *args: partial(act, *args)),
    }
    for module, name in _places(len(sys.modules)):
        yield module, name, names[name]
    # Stages take turns when they start, so that a small machine is not overrun; here a turn has nothing to protect.
    yield stage_runner, "_turns", contextlib.nullcontext()

    def wait(question: Question[Any], timeout: float | None = None) -> Any:
        if not scheduler.wait(lambda: question.answered, timeout):
            raise TimeoutError
        return question._answer.result(0)

    yield Question, "wait", wait


@functools.cache
def _places(loaded: int) -> tuple[tuple[ModuleType, str], ...]:
    """The modules of the host that have one of these names, as long as no more modules are `loaded`."""
    return tuple(
        (module, name)
        for title, module in list(sys.modules.items())
        if title.startswith(_HOST)
        for name in _NAMES
        if name in vars(module)
    )


def _clock(scheduler: Scheduler) -> Iterator[Replacement]:
    clock = Clock(scheduler)
    for name in ("monotonic", "time", "sleep", "timer"):
        yield SYSTEM, name, getattr(clock, name)

    def point(name: str, stage: str = "") -> None:
        scheduler.point(f"[{name}{f'@{stage}' if stage else ''}]")

    yield crash_points, "point", point


def _spark(scheduler: Scheduler, supply: Callable[[str], tuple[int, bool]]) -> Iterator[Replacement]:
    runner = type("Runner", (PlayedRunner,), {"scheduler": scheduler, "supply": staticmethod(supply)})

    def drafts(pipeline: Any, *_: Any) -> list[DraftStage]:
        return [DraftStage(pipeline.stages[uid], cast(DataFrame, Frame())) for uid in pipeline.order()]

    def end_at_once(reason: str) -> None:
        """The process ends, in the middle of whatever its threads do."""
        assert scheduler.current is not None
        scheduler.kill(scheduler.current.process)
        raise Killed

    def find_java() -> str:
        raise AssertionError("a job that is given a session has its Java, and starts no process to find one")

    def describe(draft: DraftStage) -> dict[str, Any]:
        return {"operators": [], "sources": [], "schema": draft.schema.simpleString()}

    yield job_module, "find_java", find_java
    yield job_module, "Gate", contextlib.nullcontext
    yield job_module, "draft_stages", drafts
    yield job_module, "StageRunner", runner
    yield job_module, "control_server", lambda token, actions: _NoControl()
    yield job_module, "end_at_once", end_at_once
    yield job_module, "reads_source", lambda description: False
    yield JobObserver, "start", lambda self, *args: None
    yield JobObserver, "stop", lambda self: None
    yield AssembledStage, "never_rests", False
    yield resume, "describe_draft", describe
    yield stage_writing, "write_files", write_files
    yield stage_runner, "WatermarkKeeper", NoWatermarks
    yield staging, "write_parquet", write_parquet
    yield staging, "pq", SimpleNamespace(read_metadata=lambda f: SimpleNamespace(num_rows=len(read_rows(f))))
    yield channel_writer, "DeltaTable", Table
    yield channel_writer, "Schema", SimpleNamespace(from_json=lambda text: SimpleNamespace(to_json=lambda: text))


class _NoControl:
    port = 1

    def stop(self) -> None: ...

    def drain(self, patience: float) -> None: ...

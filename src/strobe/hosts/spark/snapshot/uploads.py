"""The asynchronous part of a snapshot: a stage's files go to the store in the background, while it runs on.

Spark's checkpoint files are written once, so what batch N needs can be copied while batch N+5 runs. The stage's channel
is made durable up to the barrier in the same go: a manifest must not name rows that a power cut can take.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from strobe.hosts.shared.clock import SYSTEM, Clock
from strobe.hosts.spark import crash_points
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.snapshot.messages import StagePart
from strobe.hosts.spark.snapshot.recording import Recorded, Recording
from strobe.model.cut import Json
from strobe.model.errors import Failed, StrobeError
from strobe.model.ids import NodeId, SnapshotId
from strobe.store.manifest import NOTHING, BlobRef, NodeRecord, SinkRecord
from strobe.store.session import Session

__all__ = ["PartUploads"]

_log = logging.getLogger("strobe.uploads")


class PartUploads:
    """Uploads of all stages of a job. `session` is the one into which a snapshot's files go; Failed if it is over."""

    def __init__(
        self,
        session: Callable[[SnapshotId], Session],
        state_rows: Callable[[NodeId], int | None],
        descriptions: Mapping[NodeId, Mapping[str, Json]],
        threads: int = 2,
        clock: Clock = SYSTEM,
    ) -> None:
        self._clock = clock
        self._session = session
        self._state_rows = state_rows
        self._descriptions = descriptions
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="upload")

    def shutdown(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def submit(self, stage: Recorded, recording: Recording, done: Callable[[StagePart | StrobeError], None]) -> None:
        def work() -> None:
            try:
                done(self._upload(stage, recording))
            except StrobeError as error:
                done(error)
            except OSError as error:
                done(Failed(f"{error.filename or 'a file'}: {error.strerror or error}"))
            except Exception as error:
                _log.exception("%s: upload for snapshot %d", stage.uid, recording.snapshot)
                done(Failed(f"{type(error).__name__}: {error}"))

        try:
            self._pool.submit(work)
        except RuntimeError:
            done(Failed("the job is stopping"))

    def run(self, act: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the job is stopping
            self._pool.submit(act)

    def _upload(self, stage: Recorded, recording: Recording) -> StagePart:
        files: dict[str, BlobRef] = {}
        bytes_new = bytes_total = 0
        offsets = partitions = None
        if recording.batch != NOTHING:
            root = stage.checkpoint
            names = spark_checkpoint.batch_files(root, recording.batch)
            entry = spark_checkpoint.read_offsets(root, recording.batch)
            offsets, partitions = list(entry.sources), entry.partitions
            crash_points.point("snapshot.files-listed", stage.uid)
            upload = self._session(recording.snapshot).put_files({str(name): root / name for name in names})
            files, bytes_new, bytes_total = dict(upload.files), upload.bytes_new, upload.bytes_total
        if stage.output is not None and recording.barrier is not None:
            stage.output.sync(recording.barrier)
        record = NodeRecord(
            files=files,
            batch=recording.batch,
            inputs=dict(recording.inputs),  # type: ignore[arg-type]  # a channel is named after its producer
            output=recording.barrier,
            offsets=offsets,
            partitions=partitions,
            state_rows=self._state_rows(stage.uid),
            bytes_new=bytes_new,
            bytes_total=bytes_total,
            **recording.timed(self._clock.monotonic()),
            extra=self._descriptions.get(stage.uid, {}),
        )
        sinks = {name: SinkRecord(position) for name, position in recording.sinks.items()}
        return StagePart(record, recording.barrier, dict(recording.in_flight), sinks)

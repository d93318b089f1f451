"""A stage that runs one batch at a time, when it is told to, and rests in between.

Between two batches there is no query: the stage's agent alone takes part in snapshots. Each batch is run in a life of
its own (`stage.settling`). What the batch reads is decided here:

* of its channels one commit, because a batch reads whole commits, and one is the least;
* of another source what the job itself has read, if the job's offset log still says so (`Original`), else what Spark
  takes.

A stage that waits for the clock would have a batch without rows due at any moment: those are left out. Its timers fire
in batches that have rows.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strobe.hosts.spark.checkpoint import empty_batch, final_batch
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.checkpoint.stage_files import channel_positions
from strobe.hosts.spark.stage import due_batch
from strobe.hosts.spark.stage.failures import reason
from strobe.hosts.spark.stage.runner import StageRunner, StageState
from strobe.model.errors import Damaged, Failed
from strobe.model.ids import Incarnation, NodeId
from strobe.store.manifest import NOTHING

__all__ = ["Original", "SteppedRunner"]


@dataclass(frozen=True)
class Original:
    """Spark's checkpoint of the same stage in the job itself, which is only read. Batches up to `last` are of use."""

    checkpoint: Path
    last: int

    def knows(self, fork: Path, batch: int) -> bool:
        """Whether what it says of the batch after `batch` goes on from what `fork` has read."""
        if batch == NOTHING:
            return self.has(0)
        try:
            ours, theirs = (spark_checkpoint.read_offsets(c, batch) for c in (fork, self.checkpoint))
        except Damaged:
            return False  # Spark keeps the last hundred batches
        return ours == theirs and self.has(batch + 1)

    def has(self, batch: int) -> bool:
        return batch <= self.last and (self.checkpoint / "offsets" / str(batch)).exists()

    def at_ms(self, batch: int) -> int:
        """When the job planned that batch."""
        return spark_checkpoint.read_offsets(self.checkpoint, batch).timestamp_ms

    def give(self, fork: Path, batch: int) -> None:
        """Let `fork` run the batch as the job has planned it: what it reads, the clock and the watermark."""
        for path in sorted(self.checkpoint.glob("sources/*/*")):
            copy = fork / path.relative_to(self.checkpoint)
            if path.is_file() and not path.name.startswith(".") and not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, copy)
        entry = fork / "offsets" / str(batch)
        empty_batch.remove(entry)
        entry.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.checkpoint / "offsets" / str(batch), entry)
        if not (fork / "metadata").exists():
            shutil.copy(self.checkpoint / "metadata", fork / "metadata")


class SteppedRunner(StageRunner):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.original: Original | None = None
        waits = due_batch.waits_of(self._result, self.spec.output_mode)
        self._waits, self._clock = due_batch.Waits(watermark=waits.watermark), waits.clock

    def start(self) -> None:
        self._rest()
        self.state = StageState.RUNNING
        self._running.set()

    def _rest(self) -> None:
        """Without a query. Its agent takes part in snapshots."""
        self._life += 1
        self.agent.start(Incarnation(self._life), written=self._written(), alone=True)

    @property
    def batch(self) -> int:
        """The last one that it has run."""
        committed = spark_checkpoint.last_committed(self.agent.checkpoint)
        return NOTHING if committed is None else committed

    def positions(self) -> dict[NodeId, int]:
        """How far it has read each channel."""
        return channel_positions(self.agent.checkpoint, self.batch, self.agent.inputs)

    def follows_job(self) -> bool:
        """Whether the job's own log says what the next batch reads."""
        original = self.original
        return original is not None and original.knows(self.agent.checkpoint, self.batch)

    # ── what could be done next ─────────────────────────────────────────────────────────────────────────────────────

    def waiting_commit(self) -> dict[NodeId, int]:
        """The next commit of one of its channels, by position; nothing if no rows wait."""
        for producer, position in self.positions().items():
            log = self.agent.inputs[producer]
            log.refresh()
            first = next((c.version for c in log.commits(position) if c.files), None)
            if first is not None:
                return {producer: first}
        return {}

    def owes_batch(self) -> bool:
        """Whether one is planned already, or due without rows, and is not a plan that the job has never had."""
        checkpoint = self.agent.checkpoint
        if self._clock or self.original is not None:
            final_batch.drop_refused(checkpoint, self.batch)
        logged = spark_checkpoint.last_logged(checkpoint)
        if logged is not None and logged > self.batch:
            return True
        if self.original is not None or due_batch.due(checkpoint, self._waits) is None:
            return False
        moved = empty_batch.next_watermark(checkpoint, self.batch)
        return empty_batch.add(checkpoint, moved) is not None

    def plan_source(self) -> bool:
        """Let Spark look at its source. False if there is nothing to read."""
        try:
            self._settling.look(self.batch)
        except Exception as error:
            raise self._failed(self.batch + 1, error) from error
        finally:
            self._rest()
        return spark_checkpoint.last_logged(self.agent.checkpoint) not in (None, self.batch)

    # ── doing it ────────────────────────────────────────────────────────────────────────────────────────────────────

    def step(self, reads: Mapping[NodeId, int]) -> int:
        """Run the next batch, which reads the channels up to `reads`, and rest again. Returns its number."""
        batch = self.batch + 1
        try:
            self._settling.run_alone(batch, reads)
        except Exception as error:
            raise self._failed(batch, error) from error
        finally:
            self._rest()
        return batch

    def _failed(self, batch: int, error: Exception) -> Failed:
        return Failed(
            f"Stage {self.spec.uid!r} failed at batch {batch} of the replay: {reason(self._cause or error)}",
            untouched="The job, its channels and its tables are as they were.",
            next="If a source has deleted what the job has read, begin with a later --good snapshot.",
        )

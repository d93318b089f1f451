"""The agent of one stage: Spark, the stage's runner and the coordinator call it.

Each call is put into the inbox of the stage's present life (`stage.life`), and who needs an answer waits for it.
A life begins before the stage's query starts, the first time and after each failure, and ends with it; messages to
a life that is over are dropped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from strobe.hosts.spark.snapshot.messages import StageReady, ToAgent
from strobe.hosts.spark.stage.inbox import (
    BatchArrived,
    BatchComputed,
    BatchEnded,
    Closed,
    HaltAsked,
    IdleAsked,
    LookAsked,
    PlanAsked,
)
from strobe.hosts.spark.stage.life import StageLife
from strobe.hosts.spark.stage.parts import StageContext
from strobe.model.errors import Failed
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.protocol.barriers import Barriers
from strobe.protocol.events import AlignmentTimedOut
from strobe.store.manifest import NOTHING

__all__ = ["StageAgent", "StageContext"]

_log = logging.getLogger("strobe.agent")


class StageAgent:
    def __init__(self, stage: StageContext) -> None:
        self.stage = stage
        self.uid = stage.uid
        self.checkpoint = stage.checkpoint
        self.inputs = stage.inputs
        self.output = stage.output
        self.broken: Callable[[Exception], None] = self._unheard  # told if the stage can take part in no more snapshots
        self.asked = threading.Event()  # the stage's readers are up: one has asked, or a batch has come
        self._life: StageLife | None = None

    # ── called by the stage's runner ────────────────────────────────────────────────────────────────────────────────

    def start(
        self,
        incarnation: Incarnation,
        *,
        written: int = NOTHING,
        apart: int | None = None,
        reads: Mapping[NodeId, int] | None = None,
        alone: bool = False,
    ) -> None:
        """Before the stage's query starts. `written` is the last batch of which channel or sinks know. A life `apart`
        takes part in no snapshot, runs no batch after that one, and reads its channels up to `reads`, by default not
        at all. `alone`: there will be no query."""
        self.stop()
        self.asked.clear()
        self._life = self._new_life(incarnation, written=written, apart=apart, reads=reads or {}, alone=alone)
        self._life.start()
        if apart is None:
            self.stage.post(StageReady(self.uid, incarnation))

    def _new_life(
        self, incarnation: Incarnation, *, written: int, apart: int | None, reads: Mapping[NodeId, int], alone: bool
    ) -> StageLife:
        return StageLife(
            self.stage, incarnation, written=written, apart=apart, reads=reads, alone=alone,
            broken=self.broken,
        )  # fmt: skip

    def stop(self, patience: float | None = None) -> None:
        """The query has ended: no more snapshots from this life. With `patience` also if a batch of it never does."""
        if self._life is not None:
            self._life.stop(patience)

    def halt(self, patience: float) -> bool:
        """Admit nothing more and wait until the last batch is committed, so that the query can be stopped between
        batches. False if that took too long."""
        asked = HaltAsked()
        self._present.put(asked)
        try:
            asked.wait(patience)
        except TimeoutError:
            return False
        except Closed:
            return self._present.is_committed()  # it is over already
        return True

    def _unheard(self, error: Exception) -> None:
        _log.error("%s: it no longer takes part in snapshots: %s", self.uid, error)

    # ── called by Spark ─────────────────────────────────────────────────────────────────────────────────────────────

    def latest(self, reader: str, producer: NodeId, start: int) -> int:
        """Spark plans a batch: how far may this reader read?"""
        self.asked.set()
        life = self._life
        if life is None or not life.live:
            return start
        asked = PlanAsked(reader, producer, start)
        life.put(asked)
        try:
            return asked.wait()
        except Closed:
            return start

    def begin_batch(self, batch: int) -> None:
        """Spark hands over a batch; it has committed the one before. Returns when the stage may work on it; Failed if
        it is to be left for the next start."""
        self.asked.set()
        arrived = BatchArrived(batch)
        self._present.put(arrived)
        arrived.wait()

    def check_live(self, batch: int) -> None:
        """A batch that comes, or goes on, after the stage was told to stop must not be committed."""
        if not self._present.live:
            raise Failed(f"Stage {self.uid!r} is stopping; batch {batch} is left for its next start.")

    def show_batch(self, batch: int) -> None:
        """The batch is computed. When this returns, its rows may be put into the stage's channel."""
        computed = BatchComputed(batch)
        self._present.put(computed)
        computed.wait()

    def end_batch(self, batch: int, *, failed: bool = False) -> None:
        """Called at the end of every batch that was begun."""
        self._present.put(BatchEnded(batch, failed))

    # ── called by the coordinator ───────────────────────────────────────────────────────────────────────────────────

    def tell(self, message: ToAgent) -> None:
        if self._life is not None:
            self._life.put(message)

    # ── called by status and metrics ────────────────────────────────────────────────────────────────────────────────

    @property
    def batch(self) -> int:
        """The last batch that is committed."""
        return NOTHING if self._life is None else self._life.batch

    @property
    def replayed(self) -> int | None:
        """The batch that an earlier life began and did not commit."""
        return None if self._life is None else self._life.replayed

    @property
    def idle(self) -> bool:
        """Nothing is left to read, and no batch is under way or due. Only for a stage whose inputs are channels."""
        return self._ask(IdleAsked())

    @property
    def holds(self) -> bool:
        """Whether Spark's question is kept because there is nothing to read."""
        return self._life is not None and self._life.holds

    @property
    def halting(self) -> bool:
        """Whether it admits nothing more."""
        return self._life is not None and self._life.halting

    def at_rest(self) -> bool:
        """Look at the channels now, if the stage is at rest. False if a batch is begun and not committed."""
        return self._ask(LookAsked())

    def lag(self) -> tuple[int, int]:
        """Rows and commits that wait in the inputs."""
        return (0, 0) if self._life is None else self._life.lag()

    def lag_of(self, producer: NodeId) -> tuple[int, int]:
        """Rows and commits that wait in one of them."""
        return (0, 0) if self._life is None else self._life.lag_of(producer)

    @property
    def machine(self) -> Barriers | None:
        """To be looked at; None until the coordinator knows the stage."""
        return None if self._life is None else self._life.machine

    def time_out(self, snapshot: SnapshotId) -> None:
        """The alignment of `snapshot` has taken long enough. Too late, or in another life, it means nothing."""
        self._present.put(AlignmentTimedOut(snapshot))

    def _ask(self, asked: IdleAsked | LookAsked) -> bool:
        if self._life is None:
            return False
        self._life.put(asked)
        try:
            return asked.wait()
        except Closed:
            return False

    @property
    def _present(self) -> StageLife:
        assert self._life is not None, "the stage was never started"
        return self._life

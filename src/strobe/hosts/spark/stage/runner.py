"""One stage at work: its query, its batches, its restarts.

A stage that fails starts again by itself, from its own Spark checkpoint and the durable channels; the others do not
notice. Each start is a new life of the stage (`incarnation` of its agent), so messages of an old life are ignored.

Order within a batch: channel, then sinks, then Spark's own commit. Each is skipped if it has the batch already, so a
crash between any two of them is fixed by running the batch again.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from strobe.hosts.spark.channel.writer import ChannelWriter
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.connectors.base import Sink
from strobe.hosts.spark.jvm.session import POLLING_DELAY, passing_settings, spark_ended
from strobe.hosts.spark.pipeline.config import RestartPolicy
from strobe.hosts.spark.pipeline.pipeline import StageSpec
from strobe.hosts.spark.plans.description import crashed_processor
from strobe.hosts.spark.snapshot.messages import StageLost, ToCoordinator
from strobe.hosts.spark.stage.agent import StageAgent
from strobe.hosts.spark.stage.asking import growing_from, polling
from strobe.hosts.spark.stage.bad_files import FileInputs
from strobe.hosts.spark.stage.failures import in_query, is_outage, permanent, reason, refused_query
from strobe.hosts.spark.stage.pausing import SourcePause
from strobe.hosts.spark.stage.settling import Settling
from strobe.hosts.spark.stage.watermarks import WatermarkKeeper
from strobe.hosts.spark.stage.writing import BatchWriting
from strobe.model.errors import Damaged, Failed, Fenced, Misuse, StrobeError
from strobe.model.ids import Incarnation, NodeId

__all__ = ["StageRunner", "StageState"]

_log = logging.getLogger("strobe.stage")
_PATIENCE = 30.0  # seconds that a stop waits for the running batch
_GRACE = 2.0  # seconds for Spark to throw away a batch that does not end
_starting = threading.Lock()  # a query takes its settings from the session when it starts
_READER_PATIENCE = 15.0  # seconds; Spark's own is 10
# Each reader is a process of its own, and Spark gives up on one that is not up within seconds, as many that start at
# once on few cores may not be. So stages take turns, when the job starts and when they come back.
_turns = threading.BoundedSemaphore(2)


class StageState(enum.Enum):
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    ENDED = "ended"  # its source has no more; it still passes barriers on
    FAILED = "failed"
    STOPPED = "stopped"


class StageRunner:
    def __init__(
        self,
        spec: StageSpec,
        result: DataFrame,
        agent: StageAgent,
        output: ChannelWriter | None,
        *,
        partitions: int,
        restart: RestartPolicy,
        post: Callable[[ToCoordinator], None],
        on_failed: Callable[[StageRunner, str], None],
        on_fenced: Callable[[str], None],
        has_batch: Callable[[Sink, int], bool] = lambda sink, batch: False,
        has_source: bool = False,
    ) -> None:
        """`has_batch`: whether a sink has a batch for good, so that it must not come again. `has_source`: whether it
        reads a stream that is no channel."""
        self.spec = spec
        self.agent = agent
        self.output = output
        self.state = StageState.STARTING
        self.restarts = 0
        self.error = ""
        self.failure: StrobeError | None = None  # why it could not even start
        self.busy_since: float | None = None  # when the batch that runs began
        self.last_ended: tuple[int, int] | None = None  # the life in which a batch was written last, and the batch
        self._result = result
        self._partitions = partitions
        self._restart = restart
        self._post = post
        self._on_failed = on_failed
        self._on_fenced = on_fenced
        self._writing = BatchWriting(spec, agent, output, has_batch)
        self.has_source = has_source
        self.pause = SourcePause(spec.uid, agent.stage.clock)
        self._query: StreamingQuery | None = None
        self._life = 0
        self._failures = 0
        self._outages = 0  # of these, because a system outside did not answer; they are not counted against it
        self._stopping = threading.Event()
        self._closed = False  # for good
        self._cause: BaseException | None = None
        self._ended_by: BaseException | None = None  # what the last life failed of
        self._agent_error: Exception | None = None  # why the agent of this life could not go on
        agent.broken = self._agent_broken
        self._thread = threading.Thread(target=self._run, name=f"stage-{spec.uid}", daemon=True)
        self._running = threading.Event()
        self._watermarks = WatermarkKeeper(spec.uid, result, agent.checkpoint)
        self.files = FileInputs(
            spec, result, agent.checkpoint, agent.stage.clock, written=self._written, setting=self._setting
        )
        self._settling = Settling(
            spec, result, agent, self._life_apart,
            written=self._written, setting=self._setting, stopping=self._stopping,
        )  # fmt: skip

    @property
    def rows_out(self) -> int:
        """Into its channel, since the job started."""
        return self._writing.rows_out

    @property
    def progress(self) -> Mapping[str, Any]:
        """Spark's own account of the last batch."""
        query = self._query
        try:
            return dict((query.lastProgress if query is not None else None) or {})
        except Exception:  # the JVM may be going away
            return {}

    @property
    def query(self) -> StreamingQuery | None:
        """The one that runs, or ran last."""
        return self._query

    @property
    def waiting(self) -> bool:
        """Whether Spark has looked at what it reads and found nothing."""
        if self.agent.holds:
            return True
        query = self._query
        try:
            status = query.status if query is not None else {}
        except Exception:  # the JVM may be going away
            return False
        return status.get("message") == "Waiting for data to arrive"

    @property
    def trouble(self) -> str:
        """What keeps it from working now, if anything does."""
        # After an outage there may be nothing to read for a long time: then having looked is enough.
        return "" if self._outages and self.state is StageState.RUNNING and self.waiting else self.error

    def state_rows(self) -> int | None:
        operators = self.progress.get("stateOperators") or []
        return sum(int(o.get("numRowsTotal", 0)) for o in operators) if operators else None

    def check(self) -> None:
        """Check that the stage can go on from its Spark checkpoint: it is whole, and channel and sinks are not ahead of
        it."""
        uid, checkpoint = self.spec.uid, self.agent.checkpoint
        try:
            spark_checkpoint.check(checkpoint)
        except Damaged as error:
            raise Damaged(f"Stage {uid!r}: {error.what}", untouched=error.untouched, next=error.next) from error
        logged = spark_checkpoint.last_logged(checkpoint)
        known = -1 if logged is None else logged
        written = self.output.log.last_batch(self.output.timeline) if self.output is not None else None
        if written is not None and written > known:
            raise Damaged(
                f"Stage {uid!r} has written batch {written} to its channel, but its Spark checkpoint {checkpoint} "
                f"knows {'of none' if logged is None else f'only of batch {logged}'}: files are missing there.",
                untouched="Nothing was started.",
                next="Put them back, or restore the job from a snapshot.",
            )
        for sink in self.spec.sinks:
            held = sink.last_batch()
            if held is not None and held > known:
                raise Misuse(
                    f"Stage {uid!r} writes to {sink.describe()}, which already has batch {held} of this stage; in this "
                    f"home the stage has {'not begun' if logged is None else f'only come to batch {logged}'}, and its "
                    "new batches would be taken for those.",
                    untouched="Nothing was started, and the table is as it was.",
                    next="Run it with the home directory that wrote the table, or move the table away.",
                )

    def start(self) -> None:
        self._thread.start()

    def await_running(self) -> None:
        self._running.wait()

    def stop(self) -> None:
        """End the query between two batches. The stage can be started again later, by another run.

        A batch that hangs in a user's function is left to itself: should it ever go on, it is not committed.
        """
        self._closed = True
        self._halt()

    def _halt(self) -> None:
        self._stopping.set()
        query = self._query
        patience = None if query is None or self._stop_query(query) else _GRACE
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(patience)
        self.agent.stop(patience)
        if self.state is not StageState.FAILED:
            self.state = StageState.STOPPED

    # ── draining ────────────────────────────────────────────────────────────────────────────────────────────────────

    def halt(self) -> None:
        """End the query, for now. No snapshot can be taken without this stage until it is drained, or resumed."""
        self._halt()
        self._post(self._lost("it is being drained"))

    def drain(self) -> None:
        """Bring the stage's event time to an end. It has no query afterwards, but its agent takes part in snapshots."""
        self.halt()
        self._stopping.clear()
        for failures in range(1, self._restart.attempts + 2):
            try:
                self._settling.run_last_batch()
                break
            except Exception as error:
                if self._closed or isinstance(error, Fenced | Damaged) or failures > self._restart.attempts:
                    raise Failed(
                        f"Stage {self.spec.uid!r} could not be drained: {reason(self._cause or error)}",
                        untouched="Nothing is lost or done twice.",
                        next="Fix the cause and ask again.",
                    ) from error
                _log.warning("%s: its last batch failed: %s; once more", self.spec.uid, reason(self._cause or error))
                self.agent.stage.clock.sleep(self._restart.pause(failures))
        self._life += 1
        self.agent.start(Incarnation(self._life), written=self._written(), alone=True)
        self.state = StageState.ENDED

    def resume(self) -> None:
        """Go on after a `halt` or `drain`."""
        if self._closed or self._thread.is_alive():
            return
        self.agent.stop()
        self._stopping.clear()
        self.state = StageState.RESTARTING
        self._thread = threading.Thread(target=self._run, name=f"stage-{self.spec.uid}", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def _life_apart(self, last: int, reads: Mapping[NodeId, int]) -> Iterator[StreamingQuery]:
        """The query in a life that takes part in no snapshot, and runs no batch after `last`."""
        self._cause = None
        self._life += 1
        query = None
        try:
            self.agent.start(Incarnation(self._life), apart=last, reads=reads)
            with _turns:
                query = self._query = self._start_query()
            yield query
        finally:
            if query is not None:
                self._stop_query(query)
            self.agent.stop(_GRACE)

    def _written(self) -> int:
        """The last batch of which channel or sinks know."""
        held = [sink.last_batch() for sink in self.spec.sinks]
        held += [self.output.log.last_batch(self.output.timeline)] if self.output is not None else []
        return max((batch for batch in held if batch is not None), default=-1)

    # ── lives ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while not self._stopping.is_set():
            failure = self._live()
            if self._stopping.is_set():
                break
            if failure is None:
                self.state = StageState.ENDED
                _log.info("%s: its source has ended", self.spec.uid)
                break
            self._post(self._lost(failure))
            if self.failure is None and self.files.goes_on_without(self._ended_by):
                self.state = StageState.RESTARTING
                self.restarts += 1
                self._stopping.wait(self._restart.pause(1))
                continue
            self._failures += 1
            self.error = failure
            counted = self._failures - self._outages
            if counted > self._restart.attempts or self.failure is not None:
                self.state = StageState.FAILED
                self._running.set()
                self._on_failed(self, failure)
                break
            self.state = StageState.RESTARTING
            self.restarts += 1
            pause = self._restart.pause(self._failures)
            _log.warning(
                "%s failed (%s): %s; it starts again in %.1f s, the other stages go on",
                self.spec.uid, f"{counted} of {self._restart.attempts + 1}" if counted else "outage", failure, pause,
            )  # fmt: skip
            self._stopping.wait(pause)
        self._running.set()

    def _live(self) -> str | None:
        """One life, from start to end. Why it failed, or None if the query ended by itself."""
        self._cause = self._agent_error = self._ended_by = None
        try:
            self.check()
            self._settling.before_start()
            self._life += 1
            self.agent.start(Incarnation(self._life), written=self._written())
            with _turns:
                query = self._query = self._start_query()
                self.state = StageState.RUNNING
                self._running.set()
                self._await_readers(query)
            if self._agent_error is not None:
                self._stop_query(query)  # the agent broke before there was a query that it could have ended
            query.awaitTermination()
            if self._agent_error is not None:
                raise self._agent_error
            return None
        except Exception as error:
            if isinstance(self._cause, Fenced) and not self._stopping.is_set():
                self._on_fenced(str(self._cause))
            cause: BaseException = self._cause or error
            cause = spark_ended(cause) or crashed_processor(cause, self._result) or self.files.named(cause) or cause
            self._ended_by = cause
            self.failure = permanent(self.spec.uid, cause)
            self._outages += is_outage(cause) and self._restart.attempts > 0
            return in_query(self.spec, reason(cause))
        finally:
            if self.state is not StageState.RUNNING or self._stopping.is_set() or self._cause is not None:
                self.agent.stop()

    def _agent_broken(self, error: Exception) -> None:
        """Its thread ends. So the stage starts again; one whose query has ended cannot, and the job fails."""
        if self._stopping.is_set():
            return
        self._agent_error = error
        self.error = f"it could take part in no more snapshots: {reason(error)}"
        _log.error("%s: %s", self.spec.uid, self.error)
        if isinstance(error, Fenced):
            self._on_fenced(str(error))
        if self.state is not StageState.ENDED:
            if self._query is not None and self._query.isActive:
                self._stop_query(self._query)
            return
        self._post(self._lost(self.error))
        self.state = StageState.FAILED
        self._on_failed(self, self.error)

    def _lost(self, why: str) -> StageLost:
        return StageLost(self.spec.uid, Incarnation(self._life), why)

    def _await_readers(self, query: StreamingQuery) -> None:
        deadline = self.agent.stage.clock.monotonic() + _READER_PATIENCE
        while self.spec.inputs and not self.agent.asked.wait(0.1):
            if self._stopping.is_set() or not query.isActive or self.agent.stage.clock.monotonic() > deadline:
                break

    def _start_query(self) -> StreamingQuery:
        spec = self.spec
        spark: SparkSession = self._result.sparkSession
        self._watermarks.begin_life()
        self.files.begin_life()
        with _starting:
            partitions = {"spark.sql.shuffle.partitions": str(self._partitions)}
            pause = polling(spec, spark.conf.get(POLLING_DELAY, None), has_source=self.has_source)
            settings = {**partitions, **pause, **spec.conf}
            try:
                with passing_settings(spark, settings):
                    writer = self._result.writeStream.queryName(spec.uid).outputMode(spec.output_mode)
                    # With the other one Spark would end it before those that it reads.
                    if spec.trigger and not (spec.ends and spec.inputs):
                        writer = writer.trigger(**spec.trigger)
                    place = str(self.agent.checkpoint)
                    query = writer.option("checkpointLocation", place).foreachBatch(self._batch).start()
                self.pause.begin_life(query._jsq, growing_from(pause, spec.conf, has_source=self.has_source))
                return query
            except (AnalysisException, IllegalArgumentException, TypeError, ValueError) as error:
                raise refused_query(spec, error) from error

    def _setting(self, key: str, default: str) -> str:
        """What the query's settings are, or will be."""
        with _starting:
            return self.spec.conf.get(key) or str(self._result.sparkSession.conf.get(key, default))

    def _stop_query(self, query: StreamingQuery) -> bool:
        """Stopping a query in the middle of a batch is loud and throws work away, so wait until it rests. False if it
        does not: then Spark would wait for the batch for ever, and is not waited for."""

        def stop() -> None:
            try:
                query.stop()
            except Exception as error:  # the JVM may be going away
                _log.debug("%s: stop: %s", self.spec.uid, error)

        if self.agent.halt(_PATIENCE):
            stop()
            return True
        _log.warning("%s: its batch takes longer than %.0f s; it will be run again", self.spec.uid, _PATIENCE)
        self.agent.stop(0)
        stopping = threading.Thread(target=stop, name=f"stop-query-{self.spec.uid}", daemon=True)
        stopping.start()
        stopping.join(_GRACE)
        return False

    # ── batches ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _batch(self, batch: DataFrame, batch_id: int) -> None:
        self.agent.begin_batch(batch_id)
        self.pause.begin_batch()
        self.busy_since = self.agent.stage.clock.time()
        done = False
        try:
            self.files.check_present(batch_id)
            self._watermarks.begin_batch(batch_id)
            self._writing.write(batch, batch_id)
            self._watermarks.end_batch(batch_id)
            self.agent.check_live(batch_id)
            done = True
            self.last_ended = (self._life, batch_id)
        except BaseException as error:
            self._cause = error
            raise
        finally:
            self.busy_since = None
            self.agent.end_batch(batch_id, failed=not done)
        if self._failures:
            _log.info("%s has recovered", self.spec.uid)
            self._failures, self._outages, self.error = 0, 0, ""

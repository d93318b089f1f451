"""The coordinator's thread: whoever asks gets an answer, also when the job ends meanwhile."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping

import pytest

from strobe.hosts.spark.snapshot.coordinator import CoordinatorHost, Progress, SnapshotWriter
from strobe.hosts.spark.snapshot.messages import (
    AbortSnapshot,
    Acknowledge,
    Decline,
    StageLost,
    StagePart,
    StageReady,
    StageRegistered,
    StartSnapshot,
    ToAgent,
    TrimChannel,
)
from strobe.model.errors import Failed
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.model.kind import Kind
from strobe.protocol.coordinator.messages import CoordinatorSettings
from strobe.protocol.events import BarrierOptions
from strobe.store.consistency import InconsistentCut
from strobe.store.manifest import NodeRecord

A, B = NodeId("a"), NodeId("b")


class SlowWriter(SnapshotWriter):
    """Writes a manifest when told to."""

    def __init__(self) -> None:
        self.writing = threading.Event()
        self.go = threading.Event()
        self.written: list[SnapshotId] = []

    def write(self, progress: Progress, parts: Mapping[NodeId, StagePart]) -> None:
        self.writing.set()
        assert self.go.wait(60)
        self.written.append(progress.snapshot)


class Picky(SnapshotWriter):
    """Refuses the cuts that it is told to."""

    def __init__(self) -> None:
        self.refuse: set[int] = set()
        self.gone: list[SnapshotId] = []

    def write(self, progress: Progress, parts: Mapping[NodeId, StagePart]) -> None:
        if progress.snapshot in self.refuse:
            raise InconsistentCut("the cut is not consistent: a had read further than b had written")

    def aborted(self, snapshot: SnapshotId) -> None:
        self.gone.append(snapshot)


@pytest.fixture
def writer() -> SlowWriter:
    return SlowWriter()


@pytest.fixture
def host(writer: SlowWriter) -> Iterator[CoordinatorHost]:
    made = one_stage(writer, pytest.fail)
    made.start()
    yield made
    writer.go.set()
    made.stop()


def one_stage(writer: SnapshotWriter, fail_job: Callable[[str], None]) -> CoordinatorHost:
    """Of a job with one stage, which is always at rest."""

    def tell(node: NodeId, message: ToAgent) -> None:
        if isinstance(message, StartSnapshot):
            made.post(Acknowledge(node, Incarnation(1), message.snapshot, StagePart(NodeRecord(), None)))

    made = CoordinatorHost(
        {A: ()}, CoordinatorSettings(), next_snapshot=1, retained=(), writer=writer, tell=tell, fail_job=fail_job
    )
    return made


def in_background(act: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """What it returns, or raises."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(act())
        except Failed as error:
            outcome.append(str(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def test_a_snapshot_is_complete_once_its_manifest_is_written(host: CoordinatorHost, writer: SlowWriter) -> None:
    host.post(StageReady(A, Incarnation(1)))
    asking, outcome = in_background(lambda: host.snapshot(Kind.CHECKPOINT))
    assert writer.writing.wait(60)
    assert outcome == []
    writer.go.set()
    asking.join(60)
    assert outcome == [1]
    assert [p.status for p in host.history] == ["complete"]


def test_who_waits_for_a_stage_that_is_away_is_told_when_the_job_stops(host: CoordinatorHost) -> None:
    asking, outcome = in_background(lambda: host.snapshot(Kind.CHECKPOINT))
    host.stop()
    asking.join(60)
    assert "the job is stopping" in str(outcome)


def test_who_asks_after_the_end_is_told_at_once(host: CoordinatorHost) -> None:
    host.stop()
    asking, outcome = in_background(lambda: host.snapshot(Kind.CHECKPOINT))
    asking.join(60)
    assert "the job is stopping" in str(outcome)


def test_the_end_waits_for_a_manifest_that_is_being_written(host: CoordinatorHost, writer: SlowWriter) -> None:
    host.post(StageReady(A, Incarnation(1)))
    in_background(lambda: host.snapshot(Kind.CHECKPOINT))
    assert writer.writing.wait(60)
    stopping, _ = in_background(host.stop)
    stopping.join(0.2)
    assert stopping.is_alive(), "a manifest could become visible after the driver's end"
    writer.go.set()
    stopping.join(60)
    assert writer.written == [1]


class Told:
    """What a coordinator of two stages tells them, in order."""

    def __init__(self) -> None:
        self.messages: queue.Queue[tuple[NodeId, ToAgent]] = queue.Queue()
        self.host = CoordinatorHost(
            {A: (), B: (A,)}, CoordinatorSettings(tolerable_failures=9), next_snapshot=5, retained=(),
            writer=SnapshotWriter(), fail_job=pytest.fail,
            tell=lambda node, message: self.messages.put((node, message)),
        )  # fmt: skip

    def next(self) -> tuple[NodeId, ToAgent]:
        return self.messages.get(timeout=60)


@pytest.fixture
def told() -> Iterator[Told]:
    made = Told()
    made.host.start()
    yield made
    made.host.stop()


def test_a_stage_is_answered_before_it_is_told_of_a_snapshot(told: Told) -> None:
    in_background(lambda: told.host.snapshot(Kind.SAVEPOINT, last=True))
    told.host.post(StageReady(B, Incarnation(1)))
    assert told.next() == (B, StageRegistered(Incarnation(1), SnapshotId(4)))
    told.host.post(StageReady(A, Incarnation(1)))
    assert told.next() == (A, StageRegistered(Incarnation(1), SnapshotId(4)))
    assert told.next() == (A, StartSnapshot(SnapshotId(5), Kind.SAVEPOINT, BarrierOptions(last=True)))


def test_a_stage_that_comes_back_hears_of_the_last_snapshot_and_then_that_it_is_given_up(told: Told) -> None:
    in_background(lambda: told.host.snapshot(Kind.SAVEPOINT, last=True))
    for stage in (A, B):
        told.host.post(StageReady(stage, Incarnation(1)))
        told.next()
    assert isinstance(told.next()[1], StartSnapshot)
    told.host.post(StageReady(B, Incarnation(2)))
    assert told.next() == (B, StageRegistered(Incarnation(2), SnapshotId(5), last=SnapshotId(5)))
    assert [type(told.next()[1]) for _ in range(2)] == [AbortSnapshot, AbortSnapshot]
    told.host.post(StageReady(A, Incarnation(2)))
    assert told.next() == (A, StageRegistered(Incarnation(2), SnapshotId(5)))


def test_what_comes_late_of_an_earlier_life_changes_nothing(told: Told) -> None:
    for stage in (A, B):
        told.host.post(StageReady(stage, Incarnation(1)))
        told.next()
    told.host.post(StageLost(A, Incarnation(1), "it failed"))
    told.host.post(StageReady(A, Incarnation(1)))  # twice
    in_background(lambda: told.host.snapshot(Kind.CHECKPOINT))
    told.host.post(StageReady(A, Incarnation(2)))
    assert told.next() == (A, StageRegistered(Incarnation(2), SnapshotId(4)))
    assert isinstance(told.next()[1], StartSnapshot)
    told.host.post(StageLost(A, Incarnation(1), "it failed"))  # twice
    told.host.post(Decline(A, Incarnation(2), SnapshotId(5), "no room"))
    assert told.next() == (A, AbortSnapshot(SnapshotId(5), "a declined: no room"))


def test_each_channel_s_owner_is_told_how_far_it_may_trim() -> None:
    class Spares(SnapshotWriter):
        def spare(self, consumed: Mapping[NodeId, Mapping[NodeId, int]]) -> Mapping[NodeId, int]:
            return {A: consumed[B][A]}

    told = queue.Queue[tuple[NodeId, ToAgent]]()

    def tell(node: NodeId, message: ToAgent) -> None:
        if isinstance(message, StartSnapshot):
            for stage, consumed in ((A, {}), (B, {A: 17})):
                part = StagePart(NodeRecord(), None)
                made.post(Acknowledge(stage, Incarnation(1), message.snapshot, part, consumed))
        elif isinstance(message, TrimChannel):
            told.put((node, message))

    made = CoordinatorHost(
        {A: (), B: (A,)}, CoordinatorSettings(), next_snapshot=1, retained=(), writer=Spares(), tell=tell,
        fail_job=pytest.fail,
    )  # fmt: skip
    made.start()
    try:
        for stage in (A, B):
            made.post(StageReady(stage, Incarnation(1)))
        made.snapshot(Kind.CHECKPOINT, 60)
        assert told.get(timeout=60) == (A, TrimChannel(17))
    finally:
        made.stop()


def test_a_cut_that_is_refused_is_counted_and_reported_and_the_job_goes_on() -> None:
    writer, ends = Picky(), list[str]()
    host = one_stage(writer, ends.append)
    host.start()
    try:
        host.post(StageReady(A, Incarnation(1)))
        assert host.snapshot(Kind.CHECKPOINT, 60) == 1
        writer.refuse = {2, 3}
        for _ in writer.refuse:
            with pytest.raises(Failed, match="the cut is not consistent: a had read further"):
                host.snapshot(Kind.CHECKPOINT, 60)
        assert (host.completed, host.failed, host.failures_in_a_row) == (1, 2, 2)
        assert [(p.status, p.reason.partition(":")[0]) for p in host.history] == [
            ("complete", ""),
            ("failed", "the cut is not consistent"),
            ("failed", "the cut is not consistent"),
        ]
        assert host.snapshot(Kind.CHECKPOINT, 60) == 4
        assert host.failures_in_a_row == 0
        assert writer.gone == [2, 3], "their parts can go"
        assert ends == []
    finally:
        host.stop()


def test_a_job_of_which_every_cut_is_refused_ends_with_the_reason() -> None:
    writer, ends = Picky(), queue.Queue[str]()
    writer.refuse = set(range(100))
    host = one_stage(writer, ends.put)
    host.start()
    try:
        host.post(StageReady(A, Incarnation(1)))
        for _ in range(4):
            assert ends.empty()
            with pytest.raises(Failed, match="not consistent"):
                host.snapshot(Kind.CHECKPOINT, 60)
        assert "a had read further than b had written" in ends.get(timeout=60)
    finally:
        host.stop()

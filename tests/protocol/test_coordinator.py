"""The coordinator's rules, one test each; then every rule at once over random histories, and mutants that break one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strobe.model.errors import HostFault, Misuse
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.model.kind import Kind
from strobe.protocol.coordinator import Coordinator
from strobe.protocol.coordinator.messages import (
    TOLERABLE_REFUSALS,
    AbortRequested,
    Acknowledged,
    AllLost,
    AnnounceAbort,
    AnnounceComplete,
    CoordinatorEffect,
    CoordinatorInput,
    CoordinatorSettings,
    CutRefused,
    DeclinedBy,
    Dispose,
    FailJob,
    ManifestFailed,
    ManifestWritten,
    NodeLost,
    NodeReady,
    Reply,
    Tick,
    Trigger,
    TriggerRequested,
    WakeAt,
    WriteManifest,
)
from strobe.protocol.events import ORDINARY, BarrierOptions

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
CHAIN = {A: (), B: (A,), C: (B,)}
E = TypeVar("E", bound=CoordinatorEffect)


class Run:
    """A coordinator with all nodes ready, and everything that it asked for."""

    def __init__(
        self,
        upstream: dict[NodeId, tuple[NodeId, ...]] | None = None,
        *,
        ready: bool = True,
        make: Callable[..., Coordinator] = Coordinator,
        kept: tuple[int, ...] = (),
        next_snapshot: int = 1,
        **options: Any,
    ) -> None:
        self.machine = make(
            CHAIN if upstream is None else upstream,
            CoordinatorSettings(**options),
            retained=[SnapshotId(s) for s in kept],
            next_snapshot=next_snapshot,
        )
        self.log: list[CoordinatorEffect] = []
        self.nodes = tuple(CHAIN if upstream is None else upstream)
        self.tell(Tick(0))
        if ready:
            for node in self.nodes:
                self.tell(NodeReady(node, Incarnation(1)))
        self.log.clear()

    def tell(self, input: CoordinatorInput) -> tuple[CoordinatorEffect, ...]:
        effects = self.machine.step(input)
        self.log += effects
        return effects

    def at(self, now: int) -> tuple[CoordinatorEffect, ...]:
        return self.tell(Tick(now))

    def acknowledge(self, snapshot: int, *nodes: NodeId) -> None:
        for node in nodes or self.nodes:
            self.tell(Acknowledged(SnapshotId(snapshot), node, Incarnation(1)))

    def complete(self, snapshot: int) -> None:
        self.acknowledge(snapshot)
        self.tell(ManifestWritten(SnapshotId(snapshot)))

    def all(self, kind: type[E]) -> list[E]:
        return [e for e in self.log if isinstance(e, kind)]

    def started(self) -> list[int]:
        return [e.snapshot for e in self.all(Trigger)]


def test_the_first_periodic_checkpoint_starts_one_interval_after_the_start() -> None:
    run = Run(interval=1000)
    run.at(999)
    assert run.started() == []
    run.at(1000)
    assert run.started() == [1]


def test_only_nodes_without_live_upstream_are_triggered() -> None:
    run = Run({A: (), B: (), C: (A, B)})
    run.tell(TriggerRequested("r"))
    assert run.all(Trigger)[0].nodes == (A, B)


def test_every_node_is_triggered_where_snapshots_start_everywhere() -> None:
    run = Run({A: (), B: (A,), C: (A, B)}, everywhere=True)
    run.tell(TriggerRequested("r"))
    assert run.all(Trigger)[0].nodes == (A, B, C)


def check_savepoints_beside(make: type[Coordinator]) -> None:
    run = Run(make=make, everywhere=True, interval=100, max_concurrent=3)
    run.at(100)
    run.tell(TriggerRequested("s", Kind.SAVEPOINT))
    savepoint = run.all(Trigger)[1]
    assert (savepoint.nodes, savepoint.options.aligned) == ((A,), True)
    run.at(200)
    run.tell(TriggerRequested("c"))
    assert run.started() == [1, 2], "a checkpoint would overtake the savepoint's barriers"
    run.complete(2)
    assert run.started() == [1, 2, 3]
    assert run.all(Trigger)[2].nodes == (A, B, C)


def test_a_savepoint_is_aligned_and_no_checkpoint_overtakes_it() -> None:
    check_savepoints_beside(Coordinator)


class LetsCheckpointsOvertake(Coordinator):
    """Breaks: no checkpoint that starts everywhere is begun beside a savepoint."""

    def _is_aligning(self) -> bool:
        return False


def test_a_snapshot_under_way_is_known_by_its_request() -> None:
    run = Run(interval=1000, max_concurrent=2)
    run.tell(TriggerRequested("r"))
    assert run.machine.request_of(SnapshotId(1)) == "r"
    run.at(1000)
    assert run.started() == [1, 2]
    assert run.machine.request_of(SnapshotId(2)) is None
    run.complete(1)
    assert run.machine.request_of(SnapshotId(1)) is None


def test_the_manifest_is_written_only_after_the_last_acknowledgement() -> None:
    run = Run()
    run.tell(TriggerRequested("r"))
    run.acknowledge(1, A, B)
    assert run.all(WriteManifest) == []
    run.acknowledge(1, C)
    assert run.all(WriteManifest) == [WriteManifest(SnapshotId(1), Kind.CHECKPOINT)]


def test_completion_is_announced_only_after_the_manifest_is_written() -> None:
    run = Run()
    run.tell(TriggerRequested("r"))
    run.acknowledge(1)
    assert run.all(AnnounceComplete) == []
    run.tell(ManifestWritten(SnapshotId(1)))
    assert run.all(AnnounceComplete) == [AnnounceComplete(SnapshotId(1), Kind.CHECKPOINT)]
    assert run.all(Reply) == [Reply("r", SnapshotId(1))]


def test_interval_counts_from_start_to_start() -> None:
    run = Run(interval=1000)
    run.at(1000)
    run.at(1400)
    run.complete(1)
    run.at(1999)
    assert run.started() == [1]
    run.at(2000)
    assert run.started() == [1, 2]


def test_min_pause_counts_from_the_end_of_one_to_the_start_of_the_next() -> None:
    run = Run(interval=1000, min_pause=800)
    run.at(1000)
    run.at(1900)
    run.complete(1)
    run.at(2000)
    assert run.started() == [1]
    run.at(2700)
    assert run.started() == [1, 2]


def test_no_more_than_max_concurrent_at_once() -> None:
    run = Run(interval=100, max_concurrent=2)
    for now in range(100, 1000, 100):
        run.at(now)
    assert run.started() == [1, 2]
    run.complete(1)
    run.at(1000)
    assert run.started() == [1, 2, 3]


def test_a_manual_checkpoint_waits_for_a_place_but_not_for_the_interval() -> None:
    run = Run(interval=1000)
    run.at(1000)
    run.tell(TriggerRequested("r"))
    assert run.started() == [1]
    run.complete(1)
    assert run.started() == [1, 2]


def test_a_savepoint_starts_at_once_beside_a_checkpoint() -> None:
    run = Run(interval=1000)
    run.at(1000)
    run.tell(TriggerRequested("r", Kind.SAVEPOINT))
    assert [(e.snapshot, e.kind) for e in run.all(Trigger)] == [(1, Kind.CHECKPOINT), (2, Kind.SAVEPOINT)]


def test_a_trigger_says_what_its_own_request_said() -> None:
    run = Run(interval=1000)
    run.tell(TriggerRequested("r", Kind.SAVEPOINT, BarrierOptions(last=True)))
    run.tell(TriggerRequested("s", Kind.SAVEPOINT))
    run.at(1000)
    assert [e.options.last for e in run.all(Trigger)] == [True, False]


def test_a_snapshot_that_takes_too_long_is_given_up_and_names_who_was_late() -> None:
    run = Run(timeout=500, tolerable_failures=1)
    run.tell(TriggerRequested("r"))
    run.acknowledge(1, A)
    run.at(500)
    (abort,) = run.all(AnnounceAbort)
    assert "no word from b, c" in abort.reason
    assert run.all(Reply)[0].failure is not None
    assert run.all(FailJob) == []


def test_more_failures_in_a_row_than_tolerated_fail_the_job() -> None:
    run = Run(tolerable_failures=1)
    for snapshot in (1, 2):
        assert run.all(FailJob) == []
        run.tell(TriggerRequested("r"))
        run.tell(DeclinedBy(SnapshotId(snapshot), B, Incarnation(1), "no room"))
    (failed,) = run.all(FailJob)
    assert "b declined: no room" in failed.reason
    assert "2 failed in a row, 1 are tolerated" in failed.reason


def test_a_success_forgets_earlier_failures() -> None:
    run = Run(tolerable_failures=1)
    for snapshot in (1, 2, 3, 4, 5):
        run.tell(TriggerRequested("r"))
        if snapshot % 2:
            run.tell(DeclinedBy(SnapshotId(snapshot), B, Incarnation(1), "no room"))
        else:
            run.complete(snapshot)
    assert run.all(FailJob) == []


def test_a_failed_manifest_fails_that_snapshot_only() -> None:
    run = Run(tolerable_failures=1)
    run.tell(TriggerRequested("r"))
    run.acknowledge(1)
    run.tell(ManifestFailed(SnapshotId(1), "disk full"))
    assert "disk full" in run.all(AnnounceAbort)[0].reason
    run.tell(TriggerRequested("s"))
    run.complete(2)
    assert [e.snapshot for e in run.all(AnnounceComplete)] == [2]


def test_a_failed_savepoint_does_not_count_against_the_job() -> None:
    run = Run(tolerable_failures=0)
    run.tell(TriggerRequested("r", Kind.SAVEPOINT))
    run.tell(DeclinedBy(SnapshotId(1), B, Incarnation(1), "no room"))
    assert run.all(FailJob) == []
    assert run.all(Reply)[0].failure is not None


def test_an_older_checkpoint_is_disposed_of_only_after_a_newer_one_is_complete() -> None:
    run = Run(kept=(4,), next_snapshot=5)
    run.tell(TriggerRequested("r"))
    run.acknowledge(5)
    assert run.all(Dispose) == []
    effects = run.tell(ManifestWritten(SnapshotId(5)))
    assert effects.index(AnnounceComplete(SnapshotId(5), Kind.CHECKPOINT)) < effects.index(Dispose(SnapshotId(4)))


def test_savepoints_are_never_disposed_of() -> None:
    run = Run()
    run.tell(TriggerRequested("r", Kind.SAVEPOINT))
    run.complete(1)
    for snapshot in (2, 3):
        run.tell(TriggerRequested("s"))
        run.complete(snapshot)
    assert [e.snapshot for e in run.all(Dispose)] == [2]


def test_a_completed_checkpoint_gives_up_older_pending_checkpoints_but_no_savepoint() -> None:
    run = Run(max_concurrent=3)
    run.tell(TriggerRequested("r"))
    run.tell(TriggerRequested("s", Kind.SAVEPOINT))
    run.tell(TriggerRequested("t"))
    run.complete(3)
    assert [e.snapshot for e in run.all(AnnounceAbort)] == [1]
    assert run.machine.pending.keys() == {2}
    assert {e.request: (e.snapshot, e.failure) for e in run.all(Reply)} == {"r": (3, None), "t": (3, None)}


def test_losing_a_node_aborts_what_waits_for_it_without_counting_a_failure() -> None:
    run = Run(tolerable_failures=0, max_concurrent=2)
    run.tell(TriggerRequested("r"))
    run.acknowledge(1, B)
    run.tell(TriggerRequested("s"))
    run.tell(NodeLost(B, "killed"))
    assert [e.snapshot for e in run.all(AnnounceAbort)] == [2], "1 has b's part already"
    assert run.all(FailJob) == []
    run.acknowledge(1, A, C)
    assert [e.snapshot for e in run.all(WriteManifest)] == [1]


def test_nothing_starts_while_a_node_is_missing_and_the_schedule_goes_on_when_it_returns() -> None:
    run = Run(interval=1000)
    run.tell(NodeLost(B, "killed"))
    run.at(5000)
    run.tell(TriggerRequested("r"))
    assert run.started() == []
    run.tell(NodeReady(B, Incarnation(2)))
    assert run.started() == [1]


def test_a_node_that_restarts_without_word_loses_its_pending_parts() -> None:
    run = Run()
    run.tell(TriggerRequested("r"))
    run.tell(NodeReady(B, Incarnation(2)))
    assert [e.snapshot for e in run.all(AnnounceAbort)] == [1]


def test_when_the_system_goes_back_nothing_starts_before_every_node_is_ready_for_the_next_life() -> None:
    run = Run(interval=1000, tolerable_failures=0)
    run.tell(TriggerRequested("r"))
    run.tell(TriggerRequested("waits"))
    run.tell(AllLost("the system was restored"))
    assert [e.reason for e in run.all(AnnounceAbort)] == ["the system was restored"]
    run.at(5000)
    run.tell(NodeReady(A, Incarnation(2)))
    run.tell(NodeReady(B, Incarnation(2)))
    assert len(run.all(Trigger)) == 1, "of the life that is over"
    run.tell(NodeReady(C, Incarnation(2)))
    assert [e.snapshot for e in run.all(Trigger)] == [1, 2]
    assert len(run.all(AnnounceAbort)) == 1
    assert run.all(FailJob) == []


def test_words_of_an_older_incarnation_are_ignored() -> None:
    run = Run()
    run.tell(NodeReady(B, Incarnation(2)))
    run.tell(TriggerRequested("r"))
    run.acknowledge(1, A, C)
    run.tell(Acknowledged(SnapshotId(1), B, Incarnation(1)))
    run.tell(DeclinedBy(SnapshotId(1), B, Incarnation(1), "late"))
    run.tell(NodeReady(B, Incarnation(1)))
    assert run.machine.pending == {1: {B}}
    run.tell(Acknowledged(SnapshotId(1), B, Incarnation(2)))
    assert run.all(WriteManifest)


def test_an_abort_that_somebody_asked_for_is_no_failure() -> None:
    run = Run(tolerable_failures=0)
    run.tell(TriggerRequested("r"))
    run.tell(AbortRequested(SnapshotId(1), "stop"))
    assert [e.reason for e in run.all(AnnounceAbort)] == ["stop"]
    assert run.all(FailJob) == []


def test_a_manifest_that_is_being_written_can_no_longer_be_stopped() -> None:
    run = Run(timeout=100)
    run.tell(TriggerRequested("r"))
    run.acknowledge(1)
    run.tell(AbortRequested(SnapshotId(1), "stop"))
    run.at(1000)
    run.tell(NodeLost(B, "killed"))
    assert run.all(AnnounceAbort) == []
    run.tell(ManifestWritten(SnapshotId(1)))
    assert run.all(AnnounceComplete)


def test_the_coordinator_asks_to_be_woken_for_the_next_deadline() -> None:
    run = Run(interval=1000, timeout=300)
    run.at(1000)
    assert run.all(WakeAt)[-1] == WakeAt(1300)
    run.complete(1)
    assert run.all(WakeAt)[-1] == WakeAt(2000)


@pytest.mark.parametrize(
    "option",
    [
        {"interval": 0},
        {"min_pause": -1},
        {"timeout": 0},
        {"max_concurrent": 0},
        {"tolerable_failures": -1},
        {"retained": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(option: dict[str, Any]) -> None:
    with pytest.raises(Misuse, match=next(iter(option))):
        CoordinatorSettings(**option)


def test_inputs_that_make_no_sense_are_the_hosts_fault_and_change_nothing() -> None:
    run = Run()
    run.at(10)
    before = run.machine.key()
    for nonsense in (
        Tick(9),
        ManifestWritten(SnapshotId(7)),
        ManifestFailed(SnapshotId(7), ""),
        CutRefused(SnapshotId(7), ""),
        NodeLost(NodeId("z"), ""),
    ):
        with pytest.raises(HostFault):
            run.machine.step(nonsense)
    assert run.machine.key() == before


# ── cuts that are refused ───────────────────────────────────────────────────────────────────────────────────────────


class EndsTheJobAtARefusedCut(Coordinator):
    """Breaks: a cut that is refused fails its snapshot, and not the job."""

    def _tolerable_refusals(self) -> int:
        return self.settings.tolerable_failures


class GoesOnWithoutSnapshots(Coordinator):
    """Breaks: a job of which every cut is refused ends, and says so."""

    def _tolerable_refusals(self) -> int:
        return 10**9


def check_refusals(make: type[Coordinator]) -> None:
    run = Run(make=make, tolerable_failures=0)

    def refuse(snapshot: int) -> None:
        run.tell(TriggerRequested(f"r{snapshot}"))
        run.acknowledge(snapshot)
        run.tell(CutRefused(SnapshotId(snapshot), "an effect without its cause"))

    for snapshot in range(1, TOLERABLE_REFUSALS + 1):
        refuse(snapshot)
        assert run.all(FailJob) == [], "the stages are intact"
        assert run.machine.failures_in_a_row == snapshot
    assert {e.reason for e in run.all(AnnounceAbort)} == {"an effect without its cause"}
    assert {r.failure for r in run.all(Reply)} == {"an effect without its cause"}
    run.tell(TriggerRequested("good"))
    run.complete(TOLERABLE_REFUSALS + 1)
    assert run.machine.failures_in_a_row == 0
    for snapshot in range(TOLERABLE_REFUSALS + 2, 2 * TOLERABLE_REFUSALS + 3):
        refuse(snapshot)
    assert len(run.all(FailJob)) == 1, "it would never have a snapshot again"
    assert "an effect without its cause" in run.all(FailJob)[0].reason


def test_a_cut_that_is_refused_fails_its_snapshot_and_the_job_only_if_every_one_is() -> None:
    check_refusals(Coordinator)


def test_who_tolerates_more_failures_tolerates_more_refusals() -> None:
    run = Run(tolerable_failures=TOLERABLE_REFUSALS + 1)
    for snapshot in range(1, TOLERABLE_REFUSALS + 2):
        run.tell(TriggerRequested("r"))
        run.acknowledge(snapshot)
        run.tell(CutRefused(SnapshotId(snapshot), "no cut"))
    assert run.all(FailJob) == []


# ── every rule at once ──────────────────────────────────────────────────────────────────────────────────────────────

_nodes = st.sampled_from([A, B, C])
_ids = st.integers(1, 12).map(SnapshotId)
_lives = st.integers(1, 3).map(Incarnation)
_inputs = st.one_of(
    st.integers(0, 400).map(lambda d: ("tick", d)),
    st.builds(TriggerRequested, st.just("r"), st.sampled_from(Kind)),
    st.builds(Acknowledged, _ids, _nodes, _lives),
    st.builds(Acknowledged, _ids, _nodes, st.just(Incarnation(1))),
    st.builds(DeclinedBy, _ids, _nodes, _lives, st.just("no")),
    st.builds(ManifestWritten, _ids),
    st.builds(ManifestFailed, _ids, st.just("disk")),
    st.builds(CutRefused, _ids, st.just("no cut")),
    st.builds(AbortRequested, _ids, st.just("stop")),
    st.builds(NodeReady, _nodes, _lives),
    st.builds(NodeLost, _nodes, st.just("killed")),
    st.builds(AllLost, st.just("restored")),
)


def check_history(make: Callable[..., Coordinator], options: dict[str, int], history: list[object]) -> None:
    """Law 4 and the limits, judged from inputs and effects alone, by a second, simpler account."""
    run = Run(None, make=make, kept=(), ready=True, **options)
    now = 0
    live = dict.fromkeys(run.nodes, 1)
    heard: dict[int, set[NodeId]] = {}
    needed: dict[int, set[NodeId]] = {}
    open_: set[int] = set()
    writing: set[int] = set()
    complete: list[int] = []
    disposed: set[int] = set()
    for item in history:
        if isinstance(item, tuple):
            now += item[1]
            item = Tick(now)
        assert isinstance(item, CoordinatorInput)
        before = run.machine.key()
        try:
            effects = run.machine.step(item)
        except HostFault:
            assert run.machine.key() == before
            continue
        if isinstance(item, Acknowledged) and live.get(item.node) == item.incarnation:
            heard.setdefault(item.snapshot, set()).add(item.node)
        elif isinstance(item, NodeReady) and item.incarnation >= live.get(item.node, 0):
            live[item.node] = item.incarnation
        elif isinstance(item, NodeLost):
            live.pop(item.node, None)
        elif isinstance(item, AllLost):
            live.clear()
        for effect in effects:
            if isinstance(effect, Trigger):
                assert effect.snapshot not in needed, "an id is used once"
                assert all(effect.snapshot > s for s in needed), "ids rise"
                needed[effect.snapshot] = set(run.nodes)
                heard[effect.snapshot] = set()
                open_.add(effect.snapshot)
                if effect.kind is Kind.CHECKPOINT:
                    assert len(open_) <= options["max_concurrent"]
            elif isinstance(effect, WriteManifest):
                assert effect.snapshot in open_
                assert heard[effect.snapshot] >= needed[effect.snapshot], "every part is durable before the manifest"
                writing.add(effect.snapshot)
            elif isinstance(effect, AnnounceComplete):
                assert item == ManifestWritten(effect.snapshot), "complete only once the manifest is written"
                assert effect.snapshot in writing
                writing.discard(effect.snapshot)
                open_.discard(effect.snapshot)
                if effect.kind is Kind.CHECKPOINT:
                    complete.append(effect.snapshot)
            elif isinstance(effect, AnnounceAbort):
                assert effect.snapshot in open_
                assert effect.snapshot not in writing or isinstance(item, ManifestFailed | CutRefused)
                writing.discard(effect.snapshot)
                open_.discard(effect.snapshot)
            elif isinstance(effect, Dispose):
                disposed.add(effect.snapshot)
                kept = sorted(set(complete) - disposed)
                assert len(kept) >= options["retained"], "as many as asked for stay"
                assert all(effect.snapshot < s for s in kept), "the newest stay"
        assert run.machine.pending.keys() == open_


_options = st.fixed_dictionaries(
    {
        "interval": st.integers(50, 300),
        "timeout": st.integers(50, 500),
        "max_concurrent": st.integers(1, 3),
        "retained": st.integers(1, 3),
        "tolerable_failures": st.integers(0, 5),
        "min_pause": st.integers(0, 200),
    }
)


@settings(max_examples=300)
@given(_options, st.lists(_inputs, max_size=60))
def test_every_rule_holds_over_random_histories(options: dict[str, int], history: list[object]) -> None:
    check_history(Coordinator, options, history)


class WritesEarly(Coordinator):
    """Breaks: the manifest only after the last acknowledgement."""

    def _write_if_all(self, snapshot: SnapshotId) -> tuple[CoordinatorEffect, ...]:
        self._pending[snapshot].waiting.clear()
        return super()._write_if_all(snapshot)


class CommitsEarly(Coordinator):
    """Breaks: commit after the manifest."""

    def _write_if_all(self, snapshot: SnapshotId) -> tuple[CoordinatorEffect, ...]:
        effects = super()._write_if_all(snapshot)
        return (*effects, AnnounceComplete(snapshot, Kind.CHECKPOINT)) if effects else ()


class DisposesEarly(Coordinator):
    """Breaks: an older checkpoint goes only when a newer one is complete."""

    def _start(
        self, kind: Kind, request: str | None, options: BarrierOptions = ORDINARY
    ) -> tuple[CoordinatorEffect, ...]:
        effects = super()._start(kind, request, options)
        while len(self._retained) >= self.settings.retained:
            effects += (Dispose(self._retained.pop(0)),)
        return effects


class BelievesTheDead(Coordinator):
    """Breaks: incarnations fence off older voices."""

    def _acknowledge(self, ack: Acknowledged) -> tuple[CoordinatorEffect, ...]:
        return super()._acknowledge(Acknowledged(ack.snapshot, ack.node, self._ready.get(ack.node, Incarnation(0))))


@pytest.mark.parametrize(
    "mutant",
    [
        WritesEarly,
        CommitsEarly,
        DisposesEarly,
        BelievesTheDead,
        EndsTheJobAtARefusedCut,
        GoesOnWithoutSnapshots,
        LetsCheckpointsOvertake,
    ],
)
def test_a_coordinator_that_breaks_a_rule_is_caught(mutant: type[Coordinator]) -> None:
    options = {
        "interval": 100,
        "timeout": 400,
        "max_concurrent": 1,
        "retained": 1,
        "tolerable_failures": 5,
        "min_pause": 0,
    }
    history: list[object] = [("tick", 100)]
    for snapshot in (1, 2):
        history += [Acknowledged(SnapshotId(snapshot), n, Incarnation(1)) for n in (A, B)]
        history += [NodeReady(C, Incarnation(1)), Acknowledged(SnapshotId(snapshot), C, Incarnation(0))]
        history += [
            Acknowledged(SnapshotId(snapshot), C, Incarnation(1)),
            ManifestWritten(SnapshotId(snapshot)),
            ("tick", 100),
        ]

    def check(make: type[Coordinator]) -> None:
        check_history(make, options, history)
        check_refusals(make)
        check_savepoints_beside(make)

    check(Coordinator)
    with pytest.raises(AssertionError):
        check(mutant)

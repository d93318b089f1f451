"""The laws, over whatever Hypothesis can think of: any graph, any protocol, any schedule, overlapping snapshots.

The schedule is a list of numbers (which of the possible choices comes next), so a failure is shrunk to a short one and
printed with the graph, the scripts and the plan. Faults that a protocol must survive come with the clock: delays,
bursts, partitions, slow nodes, crashes.
"""

from __future__ import annotations

from hypothesis import event, given, note, settings
from hypothesis import strategies as st

from strobe.hosts.sim.network import Order
from strobe.hosts.sim.protocols import PROTOCOLS, Start
from strobe.hosts.sim.seeds import Couriers, try_seed
from strobe.hosts.sim.system import Run, System, follow
from strobe.hosts.sim.topology import joined, node_names
from strobe.model.cut import Json
from strobe.model.events import Completed
from strobe.model.graph import Graph
from strobe.model.ids import NodeId, SnapshotId
from strobe.verify.consistency import check_journal
from strobe.verify.reachability import prove

CORRECT = sorted(name for name, spec in PROTOCOLS.items() if spec.is_correct)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Self-loops, parallel channels, cycles, nodes that nothing reaches: no promise at all."""
    nodes = node_names(draw(st.integers(1, 5)))
    pairs = st.tuples(st.sampled_from(nodes), st.sampled_from(nodes))
    return joined(nodes, draw(st.lists(pairs, max_size=9)))


@st.composite
def systems(draw: st.DrawFn, protocols: st.SearchStrategy[str] = st.sampled_from(CORRECT)) -> System:  # noqa: B008
    spec = PROTOCOLS[draw(protocols)]
    graph = spec.prepare(draw(graphs()))
    order: Order = "fifo" if spec.needs_fifo else draw(st.sampled_from(["fifo", "reorder"]))
    scripts: dict[NodeId, tuple[Json, ...]] = {}
    for node in graph.nodes:
        if graph.outputs(node):
            action = st.tuples(st.sampled_from(graph.outputs(node)), st.integers(1, 9), st.integers(0, 2))
            scripts[node] = tuple(draw(st.lists(action, max_size=3)))
    plan: list[tuple[SnapshotId, tuple[NodeId, ...]]] = []
    for snapshot in range(1, draw(st.integers(1, 3)) + 1):
        initiators = spec.initiators(graph, draw(st.integers(1, len(graph.nodes))))
        if spec.start is Start.ANYWHERE:
            more = draw(st.lists(st.sampled_from(graph.nodes), max_size=2))
            initiators = tuple(dict.fromkeys((*initiators, *more)))
        plan.append((SnapshotId(snapshot), initiators))
    aborts = frozenset(s for s, _ in plan if draw(st.integers(0, 7)) == 0)
    return System(Couriers(graph), graph, spec, order, scripts, tuple(plan), aborts)


picks = st.lists(st.integers(0, 30), max_size=60)


def judged(system: System, choices: list[int]) -> Run:
    """The run, with no failure in the host's eyes and none in the verifier's, and every snapshot proved reachable."""
    run = follow(system, choices, stop=False)
    note("schedule: " + ", ".join(map(str, run.schedule)))
    assert run.done
    assert run.failures == ()
    report = check_journal(run.journal)
    assert report.ok, report.sentence
    for happened in run.journal.events:
        if isinstance(happened, Completed):
            proof = prove(run.journal, happened.cut, system.workload)
            assert proof.holds, proof.sentence
    return run


@settings(max_examples=400)
@given(systems(), picks)
def test_every_snapshot_is_a_consistent_cut_that_could_have_happened(system: System, choices: list[int]) -> None:
    run = judged(system, choices)
    complete = [e.cut for e in run.journal.events if isinstance(e, Completed)]
    busy = any(any(cut.channels.values()) for cut in complete)
    event(f"{system.spec.name}, {'something' if busy else 'nothing'} in flight")


@given(systems(), picks)
def test_a_snapshot_that_nobody_gives_up_completes(system: System, choices: list[int]) -> None:
    run = judged(system, choices)
    complete = {e.cut.snapshot for e in run.journal.events if isinstance(e, Completed)}
    assert {s for s, _ in system.plan} - system.aborts <= complete


@given(systems(st.just("chandy-lamport")), picks)
def test_a_complete_snapshot_cost_exactly_one_marker_on_each_channel(system: System, choices: list[int]) -> None:
    run = judged(system, choices)
    report = check_journal(run.journal)
    for checked in report.snapshots:
        assert checked.markers == len(system.graph.channels)


@given(systems(st.sampled_from(["aligned"])), picks)
def test_aligned_barriers_leave_nothing_in_regular_channels(system: System, choices: list[int]) -> None:
    run = judged(system, choices)
    for happened in run.journal.events:
        if isinstance(happened, Completed):
            for channel, messages in happened.cut.channels.items():
                assert not messages or system.graph.by_id[channel].feedback


@given(systems(), picks)
def test_taking_snapshots_changes_nothing_that_the_system_does(system: System, choices: list[int]) -> None:
    """Law 2: at rest, every message that was sent has been received, snapshot or not."""
    run = judged(system, choices)
    report = check_journal(run.journal)
    assert report.sent == report.received


@settings(max_examples=150)
@given(st.integers(0, 2**40), st.sampled_from(CORRECT))
def test_delays_partitions_slow_nodes_and_crashes_harm_no_snapshot(number: int, protocol: str) -> None:
    seed = 2 * number + 1  # odd seeds go by the clock
    trial = try_seed(seed, protocol, proof=True)
    note(f"seed {seed}, {trial.protocol}, {trial.what}")
    assert trial.failures == ()

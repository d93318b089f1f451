"""A seed is a whole experiment: a protocol, a graph, what runs on it, who starts which snapshot, and each choice after.

Two kinds take turns. Even seeds *walk*: a random graph (self-loops, parallel channels, cycles, separate parts), money
carried over it by couriers, overlapping snapshots with several initiators, some of which are given up; each step is
drawn from everything that is possible. Odd seeds go *by the clock*: a workload under the scheduler, with delays,
bursts, partitions, slow nodes and crashes. None of this may harm a snapshot.

Every run is judged twice: by the host, which sees everything, and by the verifier, which sees the journal only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from strobe.hosts.sim.dice import Dice
from strobe.hosts.sim.faults import Faults
from strobe.hosts.sim.judge import Failure, ViolationKind
from strobe.hosts.sim.network import Order
from strobe.hosts.sim.protocols import PROTOCOLS, ProtocolSpec, Start
from strobe.hosts.sim.runner import SimConfig, run
from strobe.hosts.sim.system import System, walk
from strobe.hosts.sim.topology import anything, complete, joined, line, node_names, random_connected, ring
from strobe.hosts.sim.workloads import Script, Workload, workload
from strobe.model.app import Application, Reaction
from strobe.model.cut import Cut, Json
from strobe.model.errors import ProtocolError
from strobe.model.events import Completed
from strobe.model.graph import Graph
from strobe.model.ids import ChannelId, NodeId, SnapshotId
from strobe.verify.consistency import check_journal
from strobe.verify.journal import Journal
from strobe.verify.reachability import prove

__all__ = ["Couriers", "Trial", "clock_config", "random_system", "try_seed"]

CORRECT = tuple(spec for spec in PROTOCOLS.values() if spec.is_correct)


class Couriers(Workload):
    """Money is passed on from node to node, and none is made or lost, on any graph.

    A message is an amount and the hops that it may still make: its receiver keeps half and sends the rest on.
    """

    name = "couriers"
    description = "Money passed from hand to hand on any graph: it is conserved."
    defaults: ClassVar[Mapping[str, Json]] = {}
    OPENING = 100

    def __init__(self, graph: Graph) -> None:
        super().__init__(len(graph.nodes))
        self.graph = graph

    def initial(self, node: NodeId) -> Json:
        return self.OPENING

    def act(self, node: NodeId, state: Json, action: Json) -> Reaction:
        channel, amount, hops = action
        return state - amount, ((channel, (amount, hops)),)

    def receive(self, node: NodeId, state: Json, channel: ChannelId, payload: Json) -> Reaction:
        amount, hops = payload
        outputs, passed = self.graph.outputs(node), amount // 2
        if not hops or not outputs or not passed:
            return state + amount, ()
        return state + amount - passed, ((outputs[amount % len(outputs)], (passed, hops - 1)),)

    def next_action(self, node: NodeId, state: Json, dice: Dice) -> Json | None:
        return None

    @property
    def length(self) -> int:
        return 0

    @classmethod
    def scripts(cls) -> Mapping[str, Script]:
        return {}

    def check(self, cut: Cut) -> str | None:
        found = sum(cut.states.values()) + sum(m.payload[0] for messages in cut.channels.values() for m in messages)
        wanted = self.OPENING * self.nodes
        return None if found == wanted else f"{found} in hands and in flight, but there were {wanted}."

    def check_end(self, states: Mapping[NodeId, Json]) -> str | None:
        return self.check(Cut(SnapshotId(0), states, {}))


# ── what a seed stands for ──────────────────────────────────────────────────────────────────────────────────────────


def random_system(seed: int, protocol: str | None = None, machine: Callable[..., Any] | None = None) -> System:
    """The system that an even seed walks through."""
    dice = Dice(seed)
    spec = dice.pick(CORRECT) if protocol is None else PROTOCOLS[protocol]
    layered = spec.takes_ends and dice.below(2) == 0
    graph = spec.prepare(_layers(dice) if layered else _graph(dice))
    scripts: dict[NodeId, tuple[Json, ...]] = {}
    for node in graph.nodes:
        outputs = graph.outputs(node)
        if outputs:
            scripts[node] = tuple([dice.pick(outputs), 1 + dice.below(30), dice.below(3)] for _ in range(dice.below(4)))
    snapshots = tuple(SnapshotId(s) for s in range(1, 2 + dice.below(3)))
    told = _told(spec, graph, dice)
    plan = {s: told or _initiators(spec, graph, s, dice) for s in snapshots}
    aborts = frozenset(s for s in snapshots if dice.below(5) == 0)
    missed: frozenset[SnapshotId] = frozenset()
    if spec.takes_ends and len(snapshots) > 1 and len(plan[snapshots[0]]) > 1 and dice.below(3) == 0:
        missed = frozenset(snapshots[:1])
        aborts -= {snapshots[-1]}  # nodes give the first one up only when a newer one completes
        without = graph.sources()[0]  # it has no input that could bring a barrier instead
        plan[snapshots[0]] = tuple(n for n in plan[snapshots[0]] if n != without)
    order: Order = "fifo" if spec.needs_fifo or dice.below(4) == 0 else "reorder"
    return System(Couriers(graph), graph, spec, order, scripts, tuple(plan.items()), aborts, missed, machine)


def _graph(dice: Dice) -> Graph:
    nodes = node_names(1 + dice.below(5))
    shape = dice.below(6)
    if shape == 0:
        return anything(nodes, 1 + dice.below(2 * len(nodes)), dice)
    if shape == 1:
        return random_connected(nodes, len(nodes) + dice.below(4), dice)
    if shape == 2:
        return ring(nodes)
    if shape == 3:
        return complete(nodes[:4])
    if shape == 4:
        return line(nodes)
    # Forward only: sources, joins and sinks.
    pairs = [(nodes[i], nodes[j]) for j in range(len(nodes)) for i in range(j)]
    return joined(nodes, dice.shuffled(pairs)[: 1 + dice.below(2 * len(nodes))])


def _layers(dice: Dice) -> Graph:
    """Sources into joins, joins into a sink or back: what barriers are for."""
    sources, joins = node_names(2 + dice.below(2), "s"), node_names(1 + dice.below(2), "j")
    pairs = [(s, j) for s in sources for j in joins]
    ends = dice.below(3)
    if ends == 0:
        return joined((*sources, *joins), pairs)
    end = NodeId("e")
    back = [(end, joins[0])] if ends == 1 else []
    return joined((*sources, *joins, end), [*pairs, *((j, end) for j in joins), *back])


def _told(spec: ProtocolSpec, graph: Graph, dice: Dice) -> tuple[NodeId, ...]:
    """Where all nodes may be told to start: the sources, and all others or some; the rest waits for barriers."""
    if spec.start is not Start.EVERYWHERE:
        return ()
    everybody = dice.below(2) == 0
    return tuple(n for n in graph.nodes if n in graph.sources() or everybody or dice.below(2))


def _initiators(spec: ProtocolSpec, graph: Graph, snapshot: int, dice: Dice) -> tuple[NodeId, ...]:
    if spec.start is not Start.ANYWHERE:
        return spec.initiators(graph, snapshot)
    needed = spec.initiators(graph, 1 + dice.below(len(graph.nodes)))
    more = [node for node in graph.nodes if node not in needed and dice.below(3) == 0]
    return (*needed, *more)


def clock_config(seed: int, protocol: str | None = None) -> SimConfig:
    """The run that an odd seed makes."""
    dice = Dice(seed)
    spec = dice.pick(CORRECT) if protocol is None else PROTOCOLS[protocol]
    name, nodes, params = dice.pick(_LOADS)(dice)
    rare = dice.below(8)
    return SimConfig(
        workload=name,
        params=params,
        nodes=nodes,
        protocol=spec.name,
        order="fifo" if spec.needs_fifo or dice.below(4) == 0 else "reorder",
        seed=seed,
        snapshots=1 + dice.below(4),
        delays=dice.pick(("uniform", "fixed", "long-tailed", "bursty", "uniform:1:3")),
        faults=Faults(partitions=int(rare == 0), slow=int(rare == 1), crashes=int(rare in (2, 3))),
        alignment_timeout=1 + dice.below(30),
        max_events=20_000,  # hundreds of times more than a run takes; a mutant may go on for ever
    )


_Load = tuple[str, int, Mapping[str, Json]]


def _bank(dice: Dice) -> _Load:
    shape = dice.pick(("complete", "ring", "line", "random", "anything"))
    nodes, channels = 1 + dice.below(5), 1 + dice.below(9)
    params = {"transfers": 1 + dice.below(3), "graph": shape, "channels": channels, "graph_seed": dice.below(1000)}
    return "bank", nodes, params


def _token_ring(dice: Dice) -> _Load:
    return "token-ring", 2 + dice.below(3), {"rounds": 1 + dice.below(2)}


def _philosophers(dice: Dice) -> _Load:
    return "philosophers", 2 + dice.below(2), {"meals": 1, "polite": bool(dice.below(2))}


def _dataflow(dice: Dice) -> _Load:
    params = {"records": 1 + dice.below(4), "keys": 2, "uneven": bool(dice.below(2)), "skew": dice.below(3)}
    return "dataflow", 4 + dice.below(3), params


def _feedback_loop(dice: Dice) -> _Load:
    return "feedback-loop", 4 + dice.below(2), {"records": 1 + dice.below(3)}


_LOADS: tuple[Callable[[Dice], _Load], ...] = (_bank, _bank, _token_ring, _philosophers, _dataflow, _feedback_loop)


# ── trying it ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Trial:
    """What came of a seed. `what` names the experiment, so that a failure can be understood and repeated."""

    seed: int
    protocol: str
    what: str
    failures: tuple[Failure, ...]
    snapshots: int  # completed
    events: int


def try_seed(
    seed: int, protocol: str | None = None, machine: Callable[..., Any] | None = None, *, proof: bool = False
) -> Trial:
    """Run the seed's experiment and judge it; with `proof`, prove every snapshot by the paper's theorem as well."""
    return (_by_clock if seed % 2 else _walk)(seed, protocol, machine, proof)


def _walk(seed: int, protocol: str | None, machine: Callable[..., Any] | None, proof: bool) -> Trial:
    system = random_system(seed, protocol, machine)
    done = walk(system, seed)
    found, snapshots = _verify(done.journal, system.workload, proof)
    graph = system.graph
    what = f"walk, {len(graph.nodes)} nodes, {len(graph.channels)} channels, {system.order}"
    return Trial(seed, system.spec.name, what, done.failures + found, snapshots, len(done.journal.events))


def _by_clock(seed: int, protocol: str | None, machine: Callable[..., Any] | None, proof: bool) -> Trial:
    config = clock_config(seed, protocol)
    what = f"{config.workload} {dict(config.params)}, {config.nodes} nodes, {config.order}, {config.delays}"
    try:
        result = run(config, machine=machine)
    except ProtocolError as error:
        refused = Failure(ViolationKind.PROTOCOL, f"{type(error).__name__}: {error.what}")
        return Trial(seed, config.protocol, what, (refused,), 0, 0)
    failures = [Failure(ViolationKind.PROTOCOL, sentence) for sentence in result.refused]
    for verdict in result.verdicts:
        if verdict.law is not None:
            failures.append(Failure(ViolationKind.CUT, verdict.law, verdict.cut.snapshot))
        if verdict.invariant is not None:
            failures.append(Failure(ViolationKind.INVARIANT, verdict.invariant, verdict.cut.snapshot))
    failures += (Failure(ViolationKind.LIVENESS, f"snapshot {s} never completed.", s) for s in result.incomplete)
    if not result.crashes:
        failures += (
            Failure(ViolationKind.LIVENESS, f"snapshot {s} was given up, but nobody asked for it: {why}.", s)
            for s, why in result.aborted.items()
        )
    if not result.at_rest:
        failures.append(Failure(ViolationKind.LIVENESS, "the run does not come to rest."))
    if result.end is not None:
        failures.append(Failure(ViolationKind.INVARIANT, f"at the end: {result.end}"))
    assert result.journal is not None
    found, snapshots = _verify(result.journal, workload(config.workload, config.nodes, config.params), proof)
    return Trial(seed, config.protocol, what, (*failures, *found), snapshots, len(result.journal.events))


def _verify(journal: Journal, app: Application, proof: bool) -> tuple[tuple[Failure, ...], int]:
    report = check_journal(journal)
    found = [Failure(ViolationKind.VERIFIER, v.sentence, v.snapshot) for v in report.violations]
    if proof and not found:
        for event in journal.events:
            if isinstance(event, Completed):
                proved = prove(journal, event.cut, app)
                if not proved.holds:
                    found.append(Failure(ViolationKind.VERIFIER, proved.sentence, event.cut.snapshot))
    return tuple(found), len(report.snapshots)

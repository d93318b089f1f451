"""One run: from a configuration to a result.

A `SimConfig` says everything that a run depends on, so the same one gives the same journal, byte for byte. It goes
into the journal's header and can be read back from there (`config_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from strobe.hosts.sim.dice import Dice
from strobe.hosts.sim.faults import Faults, plan_trouble
from strobe.hosts.sim.network import Order, delays
from strobe.hosts.sim.protocols import ProtocolSpec, protocol
from strobe.hosts.sim.scheduler import Scheduler
from strobe.hosts.sim.workloads import Workload, workload
from strobe.hosts.sim.world import World
from strobe.model.cut import Cut, Json
from strobe.model.errors import Misuse
from strobe.model.events import Event
from strobe.model.graph import Graph
from strobe.model.ids import ChannelId, NodeId, SnapshotId
from strobe.verify.journal import Header, Journal

__all__ = ["SimConfig", "SimResult", "Verdict", "config_of", "run", "workload_of"]

_CROPPED: Final = 300  # nodes, or channels, of a workload whose journal has fewer: those that matter


@dataclass(frozen=True)
class SimConfig:
    """`nodes` None is the workload's own number. Times are ticks of the virtual clock."""

    workload: str = "bank"
    params: Mapping[str, Json] = field(default_factory=dict)
    nodes: int | None = None
    protocol: str = "chandy-lamport"
    order: Order = "fifo"
    seed: int = 0
    snapshots: int = 1
    initiators: tuple[NodeId, ...] = ()
    delays: str = "uniform"
    faults: Faults = field(default_factory=Faults)
    alignment_timeout: int = 15
    snapshot_timeout: int = 0  # after which a snapshot is given up; 0 is never
    skew: int = 40  # between the fastest and the slowest clock
    journal: bool = True
    force: bool = False  # run a FIFO protocol on channels that reorder
    max_events: int = 50_000_000


@dataclass(frozen=True)
class Verdict:
    """The verdict on one complete snapshot: how it breaks the workload's invariant, and how it breaks law 1. None: it
    does not."""

    cut: Cut
    invariant: str | None
    law: str | None

    @property
    def ok(self) -> bool:
        return self.invariant is None and self.law is None


@dataclass(frozen=True)
class SimResult:
    config: SimConfig
    graph: Graph
    journal: Journal | None
    verdicts: tuple[Verdict, ...]  # of the complete snapshots, in order of their ids
    aborted: Mapping[SnapshotId, str]
    incomplete: tuple[SnapshotId, ...]  # started, and never finished
    end: str | None  # what the workload says of the states at the end
    states: Mapping[NodeId, Json]
    at_rest: bool  # False: `max_events` ran out first
    time: int
    events: int
    messages: int
    markers: Mapping[SnapshotId, Mapping[ChannelId, int]]  # sent, for each snapshot and channel
    counts: int  # of Lai–Yang, off the data path
    lost: int
    duplicated: int
    fenced: int
    crashes: int
    refused: tuple[str, ...]  # what machines reported as a fault of a peer or a channel

    @property
    def cuts(self) -> tuple[Cut, ...]:
        return tuple(verdict.cut for verdict in self.verdicts)

    @property
    def ok(self) -> bool:
        """The run came to rest, every invariant held, and no snapshot was left hanging."""
        return (
            self.at_rest and self.end is None and not self.incomplete and not self.refused
            and all(verdict.ok for verdict in self.verdicts)
        )  # fmt: skip


def run(config: SimConfig, *, machine: Callable[..., Any] | None = None) -> SimResult:
    """`machine` replaces the protocol's own class for this run: a mutant with the same constructor."""
    load, spec, graph = _prepare(config)
    dice = Dice(config.seed)
    horizon = max(20, load.length * 10)
    scheduler = Scheduler(
        load,
        dice,
        delays=delays(config.delays),
        faults=config.faults,
        trouble=plan_trouble(config.faults, graph, horizon, dice),
        alignment_timeout=config.alignment_timeout,
        snapshot_timeout=config.snapshot_timeout,
        skew=config.skew,
    )
    events: list[Event] | None = [] if config.journal else None
    world = World(
        graph, load, spec, order=config.order, factory=spec.factory(machine), driver=scheduler, events=events
    )  # fmt: skip
    header = _header(config, load, graph, {node: site.state for node, site in world.sites.items()})
    scheduler.attach(world)
    for time in sorted(1 + dice.below(horizon) for _ in range(config.snapshots)):
        scheduler.plan_snapshot(time, config.initiators)
    at_rest = scheduler.run(config.max_events)
    journal = None if events is None else Journal(header, events)
    return _result(config, load, world, scheduler, journal, at_rest)


def _prepare(config: SimConfig) -> tuple[Workload, ProtocolSpec, Graph]:
    spec = protocol(config.protocol)
    if config.order not in ("fifo", "reorder"):
        raise Misuse(f"Channels cannot be {config.order!r}.", next="Choose fifo or reorder.")
    if config.snapshots < 0:
        raise Misuse(f"{config.snapshots} snapshots cannot be taken.", next="Ask for 0 or more.")
    if spec.needs_fifo and config.order == "reorder" and not config.force:
        raise Misuse(
            f"{spec.name} needs channels that keep the order, but these reorder: its snapshots would be wrong.",
            untouched="Nothing was run.",
            next="Choose lai-yang or fifo channels; or force it, and let the verifier show what goes wrong.",
        )
    load = workload(config.workload, config.nodes, config.params)
    graph = spec.prepare(load.graph)
    spec.initiators(graph, 1, config.initiators)
    return load, spec, graph


def _result(
    config: SimConfig, load: Workload, world: World, scheduler: Scheduler, journal: Journal | None, at_rest: bool
) -> SimResult:
    states = {node: site.state for node, site in world.sites.items()}
    verdicts = tuple(
        Verdict(finished.cut, _invariant(load, finished.cut), finished.violation)
        for _, finished in sorted(world.finished.items())
    )
    markers: dict[SnapshotId, dict[ChannelId, int]] = {}
    for (channel, snapshot), times in world.markers.items():
        markers.setdefault(snapshot, {})[channel] = times
    messages = sum(wire.seq for wire in world.wires.values())
    steps = sum(site.steps for site in world.sites.values())
    counters = world.counters
    marker_events = sum(world.markers.values()) + counters["markers received"]
    return SimResult(
        config=config,
        graph=world.graph,
        journal=journal,
        verdicts=verdicts,
        aborted=dict(world.aborted),
        incomplete=tuple(sorted({*world.started, *world.parts})),
        end=load.check_end(states) if at_rest else None,
        states=states,
        at_rest=at_rest,
        time=scheduler.now,
        events=messages + steps + counters["records"] + marker_events,
        messages=messages,
        markers=markers,
        counts=counters["counts"],
        lost=counters["lost"],
        duplicated=counters["duplicated"],
        fenced=scheduler.fenced,
        crashes=scheduler.recovery.crashes,
        refused=tuple(scheduler.refused),
    )


def _invariant(load: Workload, cut: Cut) -> str | None:
    """An invariant is about whole systems; a snapshot that is not whole breaks law 1 already."""
    return load.check(cut) if len(cut.states) == len(load.graph.nodes) else None


# ── the header ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _header(config: SimConfig, load: Workload, graph: Graph, initial: Mapping[NodeId, Json]) -> Header:
    sim = {
        "nodes": load.nodes,
        "snapshots": config.snapshots,
        "initiators": list(config.initiators),
        "delays": config.delays,
        "faults": config.faults.to_json(),
        "alignment_timeout": config.alignment_timeout,
        "snapshot_timeout": config.snapshot_timeout,
        "skew": config.skew,
        "force": config.force,
        "max_events": config.max_events,
    }
    return Header(
        host="sim",
        workload=load.name,
        params={**load.params, "sim": sim},
        protocol=config.protocol,
        order=config.order,
        seed=config.seed,
        graph=graph,
        initial=initial,
    )


def config_of(header: Header) -> SimConfig:
    """The configuration that the journal was made with: run it again and the journal comes out the same."""
    if header.host != "sim" or header.seed is None or "sim" not in header.params:
        raise Misuse(f"This journal was made by the {header.host} host: only the simulator can repeat a run.")
    sim = header.params["sim"]
    order: Order = "fifo" if header.order == "fifo" else "reorder"
    return SimConfig(
        workload=header.workload,
        params={key: value for key, value in header.params.items() if key != "sim"},
        nodes=sim["nodes"],
        protocol=header.protocol,
        order=order,
        seed=header.seed,
        snapshots=sim["snapshots"],
        initiators=tuple(NodeId(n) for n in sim["initiators"]),
        delays=sim["delays"],
        faults=Faults(**sim["faults"]),
        alignment_timeout=sim["alignment_timeout"],
        snapshot_timeout=sim["snapshot_timeout"],
        skew=sim["skew"],
        force=sim["force"],
        max_events=sim["max_events"],
    )


def workload_of(header: Header) -> Workload:
    """The application and the invariant that belong to a journal of the simulator, or of the explorer."""
    params = dict(header.params)
    nodes = params.pop("nodes", None)
    sim = params.pop("sim", {"nodes": nodes})
    nodes = sim.get("nodes") if isinstance(sim, dict) else sim
    channels = params.get("channels", 0)
    graph = header.graph
    for what, count, there in (("nodes", nodes, graph.nodes), ("channels", channels, graph.channels)):
        if count is not None and (count.__class__ is not int or not 0 <= count <= max(len(there), _CROPPED)):
            raise Misuse(f"The journal's workload has {count!r:.40} {what}, and its graph has {len(there)}.")
    load = workload(header.workload, nodes, params)
    odd = [*(set(graph.nodes) - set(load.graph.nodes)), *(graph.by_id.keys() - load.graph.by_id.keys())]
    if odd:
        raise Misuse(f"The journal's graph has {min(odd)!r}, which its workload does not have.")
    return load

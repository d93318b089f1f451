"""What can go wrong in a run, and how the host sees it without a journal.

Six kinds of failure: a complete snapshot is not a consistent cut (law 1), or breaks the workload's invariant; a machine
refuses an input, which is some other machine's fault; a channel carries another number of markers than one; the run
comes to rest although a snapshot, or the system itself, has not finished (law 2). The sixth is asked for by name: a
snapshot shows a stable predicate that does not hold.

Every verdict is a function of the world's state, or of a state and one choice, never of the path that led there. The
explorer depends on this: it visits each state once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from strobe.hosts.sim.checks import Check, cut_of
from strobe.hosts.sim.protocols import ProtocolSpec
from strobe.hosts.sim.workloads.base import Workload
from strobe.hosts.sim.world import Finished, World
from strobe.model.cut import Cut
from strobe.model.errors import ProtocolError
from strobe.model.ids import SnapshotId
from strobe.protocol.chandy_lamport import ChandyLamport

__all__ = ["Failure", "Judge", "PhantomJudge", "ViolationKind"]


class ViolationKind(StrEnum):
    CUT = "cut"
    INVARIANT = "invariant"
    PROTOCOL = "protocol"
    MARKERS = "markers"
    LIVENESS = "liveness"
    VERIFIER = "verifier"  # what only the verifier says, from the journal
    PHANTOM = "phantom"  # a stable predicate that a snapshot shows, and that does not hold


@dataclass(frozen=True, slots=True)
class Failure:
    kind: ViolationKind
    sentence: str
    snapshot: SnapshotId | None = None

    def __str__(self) -> str:
        return self.sentence


class Judge:
    def __init__(
        self,
        workload: Workload | None,
        spec: ProtocolSpec,
        aborts: frozenset[SnapshotId] = frozenset(),
        missed: frozenset[SnapshotId] = frozenset(),
    ) -> None:
        """`aborts` are the snapshots that may be given up, `missed` those that cannot complete; any other must.

        Without a workload no invariant is checked.
        """
        self._workload = workload
        self._aborts = aborts | missed
        self._missed = missed
        self._one_marker = spec.machine is ChandyLamport
        self._cuts: dict[object, tuple[Failure, ...]] = {}

    @property
    def cuts(self) -> int:
        """How many different snapshots have been judged."""
        return len(self._cuts)

    def after(self, world: World, finished: int) -> tuple[Failure, ...]:
        """What a step has brought to light; `finished` snapshots were complete before it."""
        found: list[Failure] = []
        if len(world.finished) > finished:
            for snapshot, complete in islice(world.finished.items(), finished, None):
                found += self._complete(complete)
                found += self._markers(world, snapshot)
        return tuple(found)

    def at_end(self, world: World) -> tuple[Failure, ...]:
        """What is wrong with a world in which nothing more can happen, apart from what showed before."""
        return tuple(self._rest(world))

    def standing(self, world: World) -> Iterator[Failure]:
        """Everything that is wrong with this world's complete snapshots: `after`, as if all had just completed."""
        for snapshot, complete in world.finished.items():
            yield from self._complete(complete)
            yield from self._markers(world, snapshot)

    def refused(self, error: ProtocolError) -> Failure:
        return Failure(ViolationKind.PROTOCOL, f"{type(error).__name__}: {error.what}")

    def restless(self, choices: int) -> Failure:
        return Failure(ViolationKind.LIVENESS, f"the run has not come to its end after {choices} choices.")

    def _complete(self, complete: Finished) -> tuple[Failure, ...]:
        key = complete.key()
        known = self._cuts.get(key)
        if known is None:
            known = self._cuts[key] = tuple(self._check(complete))
        return known

    def _check(self, complete: Finished) -> Iterator[Failure]:
        snapshot = complete.cut.snapshot
        if complete.violation is not None:
            yield Failure(ViolationKind.CUT, complete.violation, snapshot)
        load = self._workload
        if load is None or len(complete.cut.states) < len(load.graph.nodes):
            return  # an invariant is about a whole system
        broken = load.check(complete.cut)
        if broken is not None:
            yield Failure(ViolationKind.INVARIANT, f"snapshot {snapshot}: {broken}", snapshot)

    def _markers(self, world: World, snapshot: SnapshotId) -> Iterator[Failure]:
        if not self._one_marker:
            return
        for channel in world.wires:
            count = world.markers.get((channel, snapshot), 0)
            if count != 1:
                yield Failure(
                    ViolationKind.MARKERS,
                    f"snapshot {snapshot}: {count} markers were sent on {channel}, not one.",
                    snapshot,
                )

    def _rest(self, world: World) -> Iterator[Failure]:
        for snapshot in sorted({*world.started, *(s for s, _ in world.plan)} - self._missed):
            yield Failure(
                ViolationKind.LIVENESS,
                f"snapshot {snapshot} never completed, although the run came to its end.",
                snapshot,
            )
        for snapshot, why in world.aborted.items():
            if snapshot not in self._aborts:
                yield Failure(ViolationKind.LIVENESS, f"snapshot {snapshot} was given up: {why}.", snapshot)
        for wire in world.wires.values():
            if wire.queue:
                left = f"{len(wire.queue)} item{'s' if len(wire.queue) > 1 else ''}"
                yield Failure(ViolationKind.LIVENESS, f"channel {wire.id} is held for ever, with {left} waiting in it.")
        recording = {site.id: getattr(site.machine, "recording", ()) for site in world.sites.values()}
        for node, snapshots in recording.items():
            for snapshot in snapshots:
                yield Failure(
                    ViolationKind.LIVENESS,
                    f"snapshot {snapshot}: {node} still records, although the run came to its end.",
                    snapshot,
                )
        # Not the workload's `check_end`: a script need not bring the work to its end, but it must not break anything.
        states = {site.id: site.state for site in world.sites.values()}
        end = Cut(SnapshotId(0), states, dict.fromkeys(world.wires, ()))
        broken = None if self._workload is None else self._workload.check(end)
        if broken is not None:
            yield Failure(ViolationKind.INVARIANT, f"at the end: {broken}")


class PhantomJudge(Judge):
    """Asks one thing only: whether what a snapshot shows is true of the system. A stable predicate that holds in a
    consistent cut holds when the snapshot is complete, and ever after."""

    def __init__(self, workload: Workload, spec: ProtocolSpec, check: Check) -> None:
        super().__init__(workload, spec)
        self._load = workload
        self._asked = check

    def after(self, world: World, finished: int) -> tuple[Failure, ...]:
        return tuple(self._phantoms(world, islice(world.finished.values(), finished, None)))

    def at_end(self, world: World) -> tuple[Failure, ...]:
        return ()

    def standing(self, world: World) -> Iterator[Failure]:
        yield from self._phantoms(world, world.finished.values())

    def _phantoms(self, world: World, complete: Iterable[Finished]) -> Iterator[Failure]:
        for one in complete:
            if len(one.cut.states) < len(self._load.graph.nodes):
                continue  # a predicate is about a whole system
            shown = self._asked(self._load, one.cut)
            self._cuts.setdefault(one.key(), ())
            if shown.found and not self._asked(self._load, cut_of(world)).found:
                snapshot = one.cut.snapshot
                why = "; ".join((shown.sentence, *shown.details))
                yield Failure(ViolationKind.PHANTOM, f"snapshot {snapshot} shows what is not there: {why}.", snapshot)

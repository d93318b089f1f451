"""A simulated system and what happens in it: nodes act, channels deliver, machines' effects are performed.

`Host` knows what follows from what; it does not know *when* things happen (the scheduler does) nor what else could
have happened (`World` does).

Machines are driven only through `step(input)`; their effects are performed in order and completely before anything
else happens at the node. What the application sends in answer to a message goes out after the effects of that step.
A state is never changed in place: applications return new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from strobe.hosts.sim.network import Barrier, End, Item, Marker, Order, Stamped, Wire
from strobe.hosts.sim.parts import Recording, capture
from strobe.hosts.sim.protocols import Factory, ProtocolSpec, Start
from strobe.hosts.sim.sites import Control, Driver, Finished, Site
from strobe.model.app import Application
from strobe.model.cut import Json, Message
from strobe.model.errors import HostFault
from strobe.model.events import (
    Completed,
    Duplicated,
    Event,
    Internal,
    Lost,
    MarkerReceived,
    MarkerSent,
    Received,
    Recorded,
    Sent,
)  # fmt: skip
from strobe.model.graph import Graph
from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId
from strobe.protocol.events import (
    Abort,
    AlignmentTimedOut,
    BarrierArrived,
    ChannelRecorded,
    CountArrived,
    Declined,
    Deliver,
    Effect,
    Hold,
    Initiate,
    InputEnded,
    MarkerArrived,
    MessageArrived,
    NodeRecorded,
    Overtake,
    RecordState,
    Release,
    SendBarrier,
    SendCount,
    Sending,
    SendMarker,
    SendStamped,
    StartTimer,
    Thaw,
)  # fmt: skip

__all__ = ["Host", "Plan"]


Plan: TypeAlias = Sequence[tuple[SnapshotId, Sequence[NodeId]]]


class Host:
    """`events` is the journal so far, or None when nobody wants it."""

    def __init__(
        self,
        graph: Graph,
        app: Application,
        spec: ProtocolSpec,
        *,
        order: Order = "fifo",
        factory: Factory | None = None,
        driver: Driver | None = None,
        events: list[Event] | None = None,
        scripts: Mapping[NodeId, Sequence[Json]] | None = None,
        plan: Plan = (),
    ) -> None:
        """`scripts` and `plan` (who initiates which snapshot) are for the explorer; a scheduler decides by itself."""
        self.graph = graph
        self.app = app
        self.spec = spec
        self.order: Order = order
        self.factory = factory or spec.factory()
        self.driver = driver or Driver()
        self.events = events
        self.incarnation = Incarnation(1)
        self.sites: dict[NodeId, Site] = {}
        for node in graph.nodes:
            script = tuple(scripts.get(node, ())) if scripts else ()
            self.sites[node] = Site(node, app.initial(node), self.factory(graph, node, 0), script)
        self.wires: dict[ChannelId, Wire] = {c.id: Wire(c) for c in graph.channels}
        self.parts: dict[SnapshotId, Recording] = {}
        self.finished: dict[SnapshotId, Finished] = {}
        self.aborted: dict[SnapshotId, str] = {}  # reason by snapshot
        self.started: dict[SnapshotId, None] = {}  # started, and neither finished nor aborted
        self.newest = 0
        self.controls: dict[Control, None] = {}
        self.timers: dict[tuple[NodeId, SnapshotId], None] = {}
        self.plan: dict[tuple[SnapshotId, NodeId], None] = {(s, n): None for s, nodes in plan for n in nodes}
        self.markers: dict[tuple[ChannelId, SnapshotId], int] = {}
        self.counters = {"records": 0, "markers received": 0, "counts": 0, "lost": 0, "duplicated": 0}
        self._bind()

    def _bind(self) -> None:
        self._log: Callable[[Event], None] | None = None if self.events is None else self.events.append
        self._sent = self.driver.sent
        self._receive = self.app.receive

    # ── what the nodes do ───────────────────────────────────────────────────────────────────────────────────────────

    def act(self, site: Site, action: Json) -> None:
        """The node acts by itself: an atomic step."""
        steps = site.steps = site.steps + 1
        if self._log is not None:
            self._log(Internal(site.id, steps, action))
        site.state, sends = self.app.act(site.id, site.state, action)
        for channel, payload in sends:
            self._send(site, channel, payload)

    def deliver(self, wire: Wire, index: int = 0) -> Site:
        """Hand the item at `index` of the queue to the receiver's machine."""
        queue = wire.queue
        if index:
            item = queue[index]
            del queue[index]
        else:
            item = queue.popleft()
        site = self.sites[wire.target]
        kind = type(item)
        if kind is Message:
            effects = site.step(MessageArrived(wire.id, item))
            if len(effects) == 1:
                self._perform(site, effects)
            else:
                self._perform_around(wire, item, site, effects)
        elif isinstance(item, Stamped):
            effects = site.step(MessageArrived(wire.id, item.message, item.stamp))
            self._perform_around(wire, item, site, effects)
        elif isinstance(item, Marker | Barrier):
            self.counters["markers received"] += 1
            if self._log is not None:
                self._log(MarkerReceived(site.id, site.steps, wire.id, item.snapshot))
            if isinstance(item, Marker):
                self._perform(site, site.step(MarkerArrived(wire.id, item.snapshot)))
            else:
                self._perform(site, site.step(BarrierArrived(wire.id, item.snapshot, item.overtook, item.overtaken)))
        else:
            self._perform(site, site.step(InputEnded(wire.id)))
            self._input_ended(site)
        return site

    def _send(self, site: Site, channel: ChannelId, payload: Json) -> None:
        wire = self.wires[channel]
        if wire.source != site.id:
            raise HostFault(f"The application of {site.id!r} sent on {channel!r}, which is not one of its outputs.")
        seq = wire.seq = wire.seq + 1
        message = Message(seq, payload)
        if self._log is not None:
            self._log(Sent(site.id, site.steps, channel, seq, payload))
        item: Message | Stamped = message
        if site.stamps:
            (stamped,) = site.step(Sending(channel, message))
            assert isinstance(stamped, SendStamped)
            item = Stamped(stamped.message, stamped.stamp)
        if wire.faulty:
            self._put_faulty(wire, item, seq)
        else:
            wire.queue.append(item)
            self._sent(wire)

    def _put_faulty(self, wire: Wire, item: Message | Stamped, seq: int) -> None:
        times = self.driver.fate(wire)
        if times == 0:
            self.counters["lost"] += 1
            if self._log is not None:
                self._log(Lost(wire.id, seq))
        for again in range(times):
            if again:
                self.counters["duplicated"] += 1
                if self._log is not None:
                    self._log(Duplicated(wire.id, seq))
            wire.queue.append(item)
            self._sent(wire)

    # ── effects ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _perform(self, site: Site, effects: tuple[Effect, ...]) -> None:
        sends: Sequence[tuple[ChannelId, Json]] = ()
        for effect in effects:
            if type(effect) is Deliver:
                channel, message = effect
                steps = site.steps = site.steps + 1
                if self._log is not None:
                    self._log(Received(site.id, steps, channel, message.seq))
                site.state, more = self._receive(site.id, site.state, channel, message.payload)
                sends = more if not sends else (*sends, *more)
            else:
                self._perform_other(site, effect)
        for channel, payload in sends:
            self._send(site, channel, payload)

    def _perform_around(self, wire: Wire, item: Item, site: Site, effects: tuple[Effect, ...]) -> None:
        """What comes before `Deliver` happens while the message is still in flight: it may be a recording."""
        before = 0
        while before < len(effects) and type(effects[before]) is not Deliver:
            before += 1
        if before:
            wire.queue.appendleft(item)
            self._perform(site, effects[:before])
            wire.queue.remove(item)
        self._perform(site, effects[before:])

    def _perform_other(self, site: Site, effect: Effect) -> None:
        if isinstance(effect, RecordState):
            self._record(site, effect.snapshot)
        elif isinstance(effect, SendMarker | SendBarrier):
            self._send_marker(site, effect)
        elif isinstance(effect, ChannelRecorded):
            self._part(effect.snapshot).channels[effect.channel] = effect.content
        elif isinstance(effect, NodeRecorded):
            self._node_recorded(effect.snapshot)
        elif isinstance(effect, Hold):
            self.wires[effect.channel].held = True
        elif isinstance(effect, Release):
            wire = self.wires[effect.channel]
            wire.held = False
            self.driver.released(wire)
        elif isinstance(effect, SendCount):
            self.counters["counts"] += 1
            self._post(Control("count", effect.channel, effect.snapshot, effect.sent))
        elif isinstance(effect, Overtake):
            self.wires[effect.channel].let_overtake(effect.snapshot)
        elif isinstance(effect, StartTimer):
            self.timers[site.id, effect.snapshot] = None
            self.driver.timer(site.id, effect.snapshot)
        elif isinstance(effect, Declined):
            self.abort(effect.snapshot, f"{site.id} declined it: {effect.reason}")
        else:
            raise HostFault(f"The simulator cannot perform {type(effect).__name__} here.")

    def _send_marker(self, site: Site, effect: SendMarker | SendBarrier) -> None:
        wire = self.wires[effect.channel]
        if wire.ended:
            return  # the receiver counts an ended input as having delivered every barrier
        key = (effect.channel, effect.snapshot)
        self.markers[key] = self.markers.get(key, 0) + 1
        if self._log is not None:
            self._log(MarkerSent(site.id, site.steps, effect.channel, effect.snapshot))
        for _ in range(self.driver.fate_of_marker(wire) if wire.faulty else 1):
            if isinstance(effect, SendMarker):
                wire.queue.append(Marker(effect.snapshot))
            elif effect.overtakes:
                wire.put_overtaking(effect.snapshot)
            else:
                wire.queue.append(Barrier(effect.snapshot))
            self._sent(wire)

    def _part(self, snapshot: SnapshotId) -> Recording:
        if snapshot in self.aborted:
            return Recording(snapshot)  # later messages about it are ignored
        part = self.parts.get(snapshot)
        if part is None:
            part = self.parts[snapshot] = Recording(snapshot)
            self.newest = max(self.newest, snapshot)
        return part

    def _record(self, site: Site, snapshot: SnapshotId) -> None:
        self.counters["records"] += 1
        if self._log is not None:
            self._log(Recorded(site.id, site.steps, snapshot))
        part = self._part(snapshot)
        part.record(site.id, capture(site.state), self.graph, self.wires)

    def _node_recorded(self, snapshot: SnapshotId) -> None:
        part = self._part(snapshot)
        part.finished += 1
        if part.finished < len(self.sites) or snapshot in self.aborted:
            return
        del self.parts[snapshot]
        self.started.pop(snapshot, None)
        cut = part.cut(self.graph)
        self.finished[snapshot] = Finished(cut, part.violation(self.graph))
        if self._log is not None:
            self._log(Completed(cut))

    # ── snapshots, control, ends ────────────────────────────────────────────────────────────────────────────────────

    def announce(self, snapshot: SnapshotId) -> None:
        """The snapshot is about to start: nodes whose inputs end from now on must start it themselves."""
        self.started[snapshot] = None
        self.newest = max(self.newest, snapshot)

    def initiate(self, node: NodeId, snapshot: SnapshotId) -> None:
        """Start the snapshot at this node (or join it there)."""
        if snapshot in self.aborted:
            return
        if snapshot not in self.finished:
            self.announce(snapshot)
        self.plan.pop((snapshot, node), None)
        site = self.sites[node]
        if self.spec.start is Start.IN_TURN:
            site.frozen = True
        self._perform(site, site.step(Initiate(snapshot)))

    def thaw(self, node: NodeId, snapshot: SnapshotId) -> None:
        site = self.sites[node]
        site.frozen = False
        self._perform(site, site.step(Thaw(snapshot)))

    def time_out(self, node: NodeId, snapshot: SnapshotId) -> None:
        """The alignment timer that the node asked for has run out."""
        if self.timers.pop((node, snapshot), 0) is None:
            site = self.sites[node]
            self._perform(site, site.step(AlignmentTimedOut(snapshot)))

    def abort(self, snapshot: SnapshotId, reason: str) -> None:
        """Give a snapshot up: every node hears of it, each in its own time."""
        if snapshot in self.aborted or snapshot in self.finished:
            return
        self.aborted[snapshot] = reason
        self.started.pop(snapshot, None)
        self.parts.pop(snapshot, None)
        for planned in [p for p in self.plan if p[0] == snapshot]:
            del self.plan[planned]
        for node in self.sites:
            self._post(Control("abort", node, snapshot))

    def _post(self, control: Control) -> None:
        self.controls[control] = None
        self.driver.control(control)

    def take_control(self, control: Control) -> None:
        """A message off the data path arrives."""
        if self.controls.pop(control, 0) == 0:
            return  # an older incarnation's
        if control.kind == "abort":
            site = self.sites[NodeId(control.at)]
            self._perform(site, site.step(Abort(control.snapshot)))
        else:
            channel = ChannelId(control.at)
            site = self.sites[self.wires[channel].target]
            self._perform(site, site.step(CountArrived(channel, control.snapshot, control.sent)))

    def end(self, node: NodeId) -> None:
        """The node will send nothing more. Only protocols that know ended inputs are told."""
        if self.spec.takes_ends:
            for channel in self.graph.outputs(node):
                wire = self.wires[channel]
                if not wire.ended:
                    wire.ended = True
                    wire.queue.append(End())
                    self._sent(wire)

    def live_inputs(self, node: NodeId) -> bool:
        """Whether a regular input of the node can still deliver something."""
        wires = self.wires
        return any(
            not wires[c].feedback and not (wires[c].ended and not wires[c].queue) for c in self.graph.inputs(node)
        )

    def _input_ended(self, site: Site) -> None:
        if self.live_inputs(site.id):
            return
        # No barrier can come through the inputs any more, so the snapshots that are under way start here.
        for snapshot in list(self.started):
            self._perform(site, site.step(Initiate(snapshot)))
        self.end_if_idle(site)

    def end_if_idle(self, site: Site) -> None:
        """A node ends when nothing can make it send any more: its inputs have ended and its script is through."""
        feedback = any(self.wires[c].feedback for c in self.graph.inputs(site.id))
        if not site.script and not feedback and not self.live_inputs(site.id):
            self.end(site.id)

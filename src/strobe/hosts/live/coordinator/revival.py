"""Bringing a snapshot to life: the host's side of `strobe.protocol.restore.RestoreCoordinator`.

An incarnation is durable before the first order leaves. An order carries the node's own part of the snapshot: its
state, the contents of its input channels, where its channels' counts stand, its timers, and where its peers are.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from strobe.hosts.live.coordinator.breakpoints import Breakpoints
from strobe.hosts.live.coordinator.peers import Peer
from strobe.hosts.live.coordinator.record import RecordFile
from strobe.hosts.live.snapshot.snapshots import Loaded
from strobe.hosts.live.wire import control
from strobe.hosts.live.wire.link import Address
from strobe.model.errors import Fenced
from strobe.model.graph import Graph
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline
from strobe.protocol.coordinator.messages import NodeLost, Tick
from strobe.protocol.restore import RestoreCoordinator
from strobe.protocol.restore.messages import (
    ClaimIncarnation,
    NodeReturned,
    RestoreCoordinatorInput,
    Restored,
    RestoreFailed,
    RestoreOrder,
    RestoreRequested,
    StandDown,
    Start,
    ToNode,
)

__all__ = ["BEGINNING", "Revival", "RevivalOwner"]

BEGINNING = Loaded(SnapshotId(0))


class RevivalOwner(Protocol):
    @property
    def breakpoints(self) -> Breakpoints: ...

    @property
    def newest(self) -> int:
        """The largest number that a snapshot has ever had."""
        ...

    def now(self) -> int: ...

    def wake(self, what: str, at: int, do: Callable[[], None]) -> None: ...

    def restored(self, restored: Restored, loaded: Loaded) -> None: ...

    def fail(self, reason: str) -> None: ...


class Revival:
    def __init__(
        self,
        graph: Graph,
        peers: Mapping[NodeId, Peer],
        record: RecordFile,
        owner: RevivalOwner,
        *,
        elsewhere: Mapping[NodeId, Address],
        timeout_ms: int,
    ) -> None:
        """`elsewhere`: nodes that others reach at another address than the coordinator does."""
        self._elsewhere = elsewhere
        self.underway = False
        self._graph = graph
        self._peers = peers
        self._record = record
        self._owner = owner
        self.loaded = BEGINNING  # what the present life began from, or the next one will
        self._sealed: tuple[int, bytes] = (0, b"")
        self._machine = RestoreCoordinator(
            graph.nodes,
            incarnation=record.now.incarnation,
            timeline=record.now.timeline,
            timeout=timeout_ms,
        )
        for node in graph.nodes:
            self.lost(node, "it has not been reached yet")

    @property
    def incarnation(self) -> Incarnation:
        return self._machine.incarnation

    @property
    def timeline(self) -> Timeline:
        return self._machine.timeline

    def request(self, loaded: Loaded) -> None:
        """Start to restore this snapshot, as soon as no node is missing."""
        self.loaded = loaded
        self.underway = True
        self.feed(RestoreRequested(loaded.snapshot))

    def lost(self, node: NodeId, reason: str) -> None:
        self.feed(NodeLost(node, reason))

    def back(self, node: NodeId) -> None:
        self.feed(NodeReturned(node))

    def feed(self, input: RestoreCoordinatorInput) -> None:
        for each in (Tick(self._owner.now()), input):
            for effect in self._machine.step(each):
                if isinstance(effect, ClaimIncarnation):
                    try:
                        self._record.claim(effect.incarnation, effect.timeline)
                    except Fenced as error:
                        self._owner.fail(str(error))
                        return
                elif isinstance(effect, ToNode):
                    self._order(self._peers[effect.node], effect.message)
                elif isinstance(effect, Restored):
                    self.underway = False
                    self._owner.restored(effect, self.loaded)
                elif isinstance(effect, RestoreFailed):
                    self._owner.fail(f"snapshot {effect.snapshot} could not be brought to life: {effect.reason}")
                elif isinstance(effect, StandDown):
                    self._owner.fail(f"incarnation {effect.newer} has taken over")
                else:
                    self._owner.wake("restore", effect.at, lambda: self.feed(Tick(self._owner.now())))

    def _token(self, incarnation: int) -> bytes:
        if self._sealed[0] != incarnation:
            self._sealed = (incarnation, secrets.token_bytes(16))
        return self._sealed[1]

    def _order(self, peer: Peer, message: RestoreOrder | Start) -> None:
        if isinstance(message, Start):
            peer.say(control.Go(message.incarnation))
            return
        loaded, node = self.loaded, peer.node
        inputs = self._graph.inputs(node)
        full = loaded.in_flight(inputs)

        def bulk() -> Iterator[tuple[str, bytes]]:
            if loaded.snapshot:
                yield from (("", data) for data in loaded.states.pieces(node))
                yield from ((channel, data) for channel in full for data in loaded.contents.pieces(channel))

        peer.say_after(
            message.incarnation,
            bulk(),
            control.Order(
                incarnation=message.incarnation,
                timeline=message.timeline,
                snapshot=message.snapshot,
                addresses={
                    str(n): self._elsewhere.get(n, p.address) for n, p in self._peers.items() if p.address is not None
                },
                sent={str(c): loaded.sent.get(c, 0) for c in self._graph.outputs(node)},
                received={str(c): loaded.received.get(c, 0) for c in inputs},
                timers=loaded.timers.get(node, []),
                state_bytes=loaded.states.size(node) if loaded.snapshot else 0,
                content_bytes={str(c): loaded.contents.size(c) for c in full},
                breaks=self._owner.breakpoints.texts(node),
                base=self._owner.newest,
                token=self._token(message.incarnation),
            ),
            lambda why: self._owner.fail(f"snapshot {loaded.snapshot} could not be brought to life: {why}"),
        )

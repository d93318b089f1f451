"""The coordinator of a restore: orders, waits until everyone is ready, starts. The theory is in the package.

Two nodes: none is started before both are ready.

>>> a, b, fourth = NodeId("a"), NodeId("b"), Incarnation(4)
>>> coordinator = RestoreCoordinator([a, b], incarnation=Incarnation(3), timeline=Timeline(1))
>>> def said(*inputs):
...     effects = [e for input in inputs for e in coordinator.step(input) if not isinstance(e, WakeAt)]
...     return [type(getattr(effect, "message", effect)).__name__ for effect in effects]
>>> said(Tick(0), RestoreRequested(SnapshotId(7)))
['ClaimIncarnation', 'RestoreOrder', 'RestoreOrder']
>>> said(Ready(a, fourth))
[]
>>> said(Ready(b, fourth))
['Start', 'Start']
>>> said(Running(a, fourth), Running(b, fourth))
['Restored']
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

from strobe.model.errors import HostFault, PeerFault
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline
from strobe.protocol.coordinator.messages import NodeLost, Tick, WakeAt
from strobe.protocol.restore.messages import (
    CancelRestore,
    ClaimIncarnation,
    Fence,
    NodeReturned,
    Ready,
    Refused,
    RestoreCoordinatorEffect,
    RestoreCoordinatorInput,
    Restored,
    RestoreFailed,
    RestoreOrder,
    RestoreRequested,
    Running,
    StandDown,
    Start,
    Superseded,
    ToNode,
    Verdict,
)
from strobe.protocol.transitions import Transitions

__all__ = ["TRANSITIONS", "RestoreCoordinator"]


class RestorePhase(Enum):
    IDLE = "idle"
    WAITING = "waiting"  # until no node is missing
    LOADING = "loading"
    STARTING = "starting"
    OVER = "over"


_I, _W, _L, _S, _O = RestorePhase
TRANSITIONS: Final = Transitions(
    _I,
    {
        (_I, "requested"): _W,
        (_W, "no node is missing"): _L,
        (_L, "all are ready"): _S,
        (_S, "all are running"): _I,
        (_L, "next attempt"): _W,
        (_S, "next attempt"): _W,
        (_W, "given up"): _I,
        (_L, "given up"): _I,
        (_S, "given up"): _I,
        (_I, "superseded"): _O,
        (_W, "superseded"): _O,
        (_L, "superseded"): _O,
        (_S, "superseded"): _O,
    },
)


class _Attempt(NamedTuple):
    snapshot: SnapshotId
    number: int  # from 1
    unready: frozenset[NodeId] = frozenset()
    unstarted: frozenset[NodeId] = frozenset()  # empty until the starts are sent
    deadline: int = 0


class RestoreCoordinator:
    """Time comes in as `Tick(now)`, before other inputs and when the last `WakeAt` says so, in milliseconds.

    All state is in immutable values: a shallow copy is a full copy.
    """

    def __init__(
        self,
        nodes: Iterable[NodeId],
        *,
        incarnation: Incarnation,
        timeline: Timeline,
        timeout: int = 60_000,
        attempts: int = 3,
    ) -> None:
        """`incarnation` and `timeline` are the highest that have been claimed so far."""
        self.nodes = tuple(nodes)
        self.timeout = timeout
        self.attempts = attempts
        self.incarnation = incarnation
        self.timeline = timeline
        self._now = 0
        self._attempt: _Attempt | None = None
        self._missing: frozenset[NodeId] = frozenset()
        self.phase = TRANSITIONS.first

    def key(self) -> object:
        return self.incarnation, self.timeline, self._now, self._attempt, self._missing, self.phase

    @property
    def underway(self) -> bool:
        """Whether orders are out that have not been answered."""
        return self.phase in (RestorePhase.LOADING, RestorePhase.STARTING)

    def step(self, input: RestoreCoordinatorInput) -> tuple[RestoreCoordinatorEffect, ...]:
        if self.phase is RestorePhase.OVER:
            return ()
        match input:
            case Tick():
                return self._tick(input.now)
            case Ready() | Refused() | Running():
                return self._message(input)
            case NodeLost():
                return self._lost(input.node, input.reason)
            case NodeReturned():
                return self._returned(input.node)
            case RestoreRequested():
                return self._request(input.snapshot)
            case CancelRestore():
                if self._attempt is None:
                    raise HostFault("There is no restore to cancel.")
                return self._give_up(f"cancelled: {input.reason}")
            case Superseded():
                return self._stand_down(input.incarnation)
            case _:
                raise HostFault(f"The restore coordinator takes no {type(input).__name__}.")

    def _tick(self, now: int) -> tuple[RestoreCoordinatorEffect, ...]:
        if now < self._now:
            raise HostFault(f"The clock went back from {self._now} to {now} ms.")
        self._now = now
        attempt = self._attempt
        if attempt is None or not self.underway or now < attempt.deadline:
            return ()
        late = sorted(attempt.unready or attempt.unstarted)
        return self._try_again(f"no answer from {', '.join(late)} within {self.timeout} ms")

    def _request(self, snapshot: SnapshotId) -> tuple[RestoreCoordinatorEffect, ...]:
        if self._attempt is not None:
            raise HostFault(f"Snapshot {snapshot} is to be restored while {self._attempt.snapshot} still is.")
        self._attempt = _Attempt(snapshot, 1)
        self._enter("requested")
        self.timeline = Timeline(self.timeline + 1)
        return self._begin()

    def _lost(self, node: NodeId, reason: str) -> tuple[RestoreCoordinatorEffect, ...]:
        self._check_node(node)
        self._missing |= {node}
        if not self.underway:
            return ()
        return self._try_again(f"{node} was lost: {reason}")

    def _returned(self, node: NodeId) -> tuple[RestoreCoordinatorEffect, ...]:
        self._check_node(node)
        if node not in self._missing:
            raise HostFault(f"Node {node!r} returned, but it was not lost.")
        self._missing -= {node}
        return self._begin() if self._attempt is not None else ()

    def _message(self, message: Ready | Refused | Running) -> tuple[RestoreCoordinatorEffect, ...]:
        node = message.node
        if node not in self.nodes:
            raise PeerFault(f"{type(message).__name__} came from {node!r}, which is not a node of this system.")
        verdict = Fence(self.incarnation).judge(message.incarnation)
        if verdict is Verdict.NEWER:
            return self._stand_down(message.incarnation)
        attempt = self._attempt
        if verdict is Verdict.OLDER or attempt is None or not self.underway:
            return ()  # the remains of an attempt that is over
        if isinstance(message, Running):
            if node not in attempt.unstarted:
                raise PeerFault(f"{node} says that it runs: it was not told to start, or has said so before.")
            return self._running(attempt._replace(unstarted=attempt.unstarted - {node}))
        if node not in attempt.unready:
            raise PeerFault(f"{node} answers the order of incarnation {message.incarnation} a second time.")
        if isinstance(message, Refused):
            return self._try_again(f"{node} refused: {message.reason}")
        return self._ready(attempt._replace(unready=attempt.unready - {node}))

    # ── rules; the mutants in the tests override exactly these ──────────────────────────────────────────────────────

    def _begin(self) -> tuple[RestoreCoordinatorEffect, ...]:
        """Claim a new incarnation, then order every node: a node that is missing is waited for first."""
        attempt = self._attempt
        if attempt is None or self.underway or self._missing:
            return ()
        self._enter("no node is missing")
        self.incarnation = Incarnation(self.incarnation + 1)
        deadline = self._now + self.timeout
        everyone = frozenset(self.nodes)
        self._attempt = attempt._replace(unready=everyone, unstarted=frozenset(), deadline=deadline)
        order = RestoreOrder(self.incarnation, self.timeline, attempt.snapshot)
        orders = (ToNode(node, order) for node in self.nodes)
        return (ClaimIncarnation(self.incarnation, self.timeline), *orders, WakeAt(deadline))

    def _ready(self, attempt: _Attempt) -> tuple[RestoreCoordinatorEffect, ...]:
        """Rule 1: start when the last one is ready."""
        self._attempt = attempt
        if attempt.unready:
            return ()
        self._attempt = attempt._replace(unstarted=frozenset(self.nodes))
        self._enter("all are ready")
        return tuple(ToNode(node, Start(self.incarnation)) for node in self.nodes)

    def _running(self, attempt: _Attempt) -> tuple[RestoreCoordinatorEffect, ...]:
        self._attempt = attempt
        if attempt.unstarted:
            return ()
        self._attempt = None
        self._enter("all are running")
        return (Restored(self.incarnation, self.timeline, attempt.snapshot),)

    def _try_again(self, reason: str) -> tuple[RestoreCoordinatorEffect, ...]:
        assert self._attempt is not None
        if self._attempt.number >= self.attempts:
            return self._give_up(f"{reason} (attempt {self._attempt.number} of {self.attempts})")
        if self.phase is RestorePhase.STARTING:
            # The starts are out: somebody may have written under this timeline.
            self.timeline = Timeline(self.timeline + 1)
        self._attempt = _Attempt(self._attempt.snapshot, self._attempt.number + 1)
        self._enter("next attempt")
        return self._begin()

    def _give_up(self, reason: str) -> tuple[RestoreCoordinatorEffect, ...]:
        assert self._attempt is not None
        snapshot = self._attempt.snapshot
        self._attempt = None
        self._enter("given up")
        return (RestoreFailed(snapshot, reason),)

    def _stand_down(self, newer: Incarnation) -> tuple[RestoreCoordinatorEffect, ...]:
        if newer <= self.incarnation:
            raise HostFault(f"Incarnation {newer} cannot supersede {self.incarnation}.")
        self._enter("superseded")
        return (StandDown(newer),)

    def _enter(self, event: str) -> None:
        self.phase = TRANSITIONS.after(self.phase, event)

    def _check_node(self, node: NodeId) -> None:
        if node not in self.nodes:
            raise HostFault(f"{node!r} is not a node of this system.")

"""Bringing a snapshot back to life: prepare, everyone ready, start; and the fence between incarnations.

Theory of operation
-------------------
A restore gives the whole system an old state while messages, writers and timers of its later life are still about.
Two rules keep the lives apart:

1. *Nobody starts before everyone is ready.* The coordinator orders every node to load the snapshot; a node stops its
   application first and says when it is ready; when all have, the coordinator says start. Between its order and its
   start a node neither delivers nor sends application messages: what a peer that has started already sends is held.
2. *The fence.* Every message carries the incarnation of its sender. An older one is dropped. A newer one proves that
   the receiver belongs to a life that is over: it stops, and waits for an order.

Whatever goes wrong (a node dies or refuses, the time is over, the coordinator itself dies) is answered by beginning
anew with a higher incarnation; rule 2 makes the remains of the failed attempt harmless. An incarnation is claimed
durably before its first order leaves, so two attempts never share one, whoever makes them. The *timeline* names what
the nodes write: it rises with every restore, and again when an attempt fails after its first start, because somebody
may have written under it.

              order                loaded              start
    stopped ─────────▶ loading ─────────────▶ ready ─────────▶ running
       ▲                  │ a newer incarnation, seen anywhere    │
       └──────────────────┴───────────────────┴───────────────────┘
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from strobe.model.errors import HostFault, PeerFault
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline
from strobe.protocol.coordination import NodeLost, Tick, WakeAt
from strobe.protocol.events import Deliver, Sending
from strobe.protocol.restoring import (
    CancelRestore,
    ClaimIncarnation,
    Fence,
    Fenced,
    LoadFailed,
    LoadState,
    NodeReturned,
    Ready,
    Refused,
    RestoreCoordinatorEffect,
    RestoreCoordinatorInput,
    Restored,
    RestoreFailed,
    RestoreOrder,
    RestoreParticipantEffect,
    RestoreParticipantInput,
    RestoreRequested,
    Running,
    SendFenced,
    StandDown,
    Start,
    StartApplication,
    StateLoaded,
    StopApplication,
    Superseded,
    ToCoordinator,
    ToNode,
    Verdict,
)

__all__ = ["Fence", "Phase", "RestoreCoordinator", "RestoreParticipant"]


class _Attempt(NamedTuple):
    snapshot: SnapshotId
    number: int  # from 1
    underway: bool = False  # False: it waits until no node is missing
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
        self._over = False

    def key(self) -> object:
        return self.incarnation, self.timeline, self._now, self._attempt, self._missing, self._over

    def step(self, input: RestoreCoordinatorInput) -> tuple[RestoreCoordinatorEffect, ...]:
        if self._over:
            return ()
        if isinstance(input, Tick):
            return self._tick(input.now)
        if isinstance(input, Ready | Refused | Running):
            return self._message(input)
        if isinstance(input, NodeLost):
            return self._lost(input.node, input.reason)
        if isinstance(input, NodeReturned):
            return self._returned(input.node)
        if isinstance(input, RestoreRequested):
            return self._request(input.snapshot)
        if isinstance(input, CancelRestore):
            if self._attempt is None:
                raise HostFault("There is no restore to cancel.")
            return self._give_up(f"cancelled: {input.reason}")
        if isinstance(input, Superseded):
            return self._stand_down(input.incarnation)
        raise HostFault(f"The restore coordinator takes no {type(input).__name__}.")

    def _tick(self, now: int) -> tuple[RestoreCoordinatorEffect, ...]:
        if now < self._now:
            raise HostFault(f"The clock went back from {self._now} to {now} ms.")
        self._now = now
        attempt = self._attempt
        if attempt is None or not attempt.underway or now < attempt.deadline:
            return ()
        late = sorted(attempt.unready or attempt.unstarted)
        return self._anew(f"no answer from {', '.join(late)} within {self.timeout} ms")

    def _request(self, snapshot: SnapshotId) -> tuple[RestoreCoordinatorEffect, ...]:
        if self._attempt is not None:
            raise HostFault(f"Snapshot {snapshot} is to be restored while {self._attempt.snapshot} still is.")
        self._attempt = _Attempt(snapshot, 1)
        self.timeline = Timeline(self.timeline + 1)
        return self._begin()

    def _lost(self, node: NodeId, reason: str) -> tuple[RestoreCoordinatorEffect, ...]:
        self._check_node(node)
        self._missing |= {node}
        if self._attempt is None or not self._attempt.underway:
            return ()
        return self._anew(f"{node} was lost: {reason}")

    def _returned(self, node: NodeId) -> tuple[RestoreCoordinatorEffect, ...]:
        self._check_node(node)
        if node not in self._missing:
            raise HostFault(f"Node {node!r} returned, but it was not lost.")
        self._missing -= {node}
        return self._begin() if self._attempt is not None else ()

    def _message(self, message: Ready | Refused | Running) -> tuple[RestoreCoordinatorEffect, ...]:
        node = message.node
        if node not in self.nodes:
            raise PeerFault(f"{type(message).__name__} came from {node!r}, which is no node of this system.")
        verdict = Fence(self.incarnation).judge(message.incarnation)
        if verdict is Verdict.NEWER:
            return self._stand_down(message.incarnation)
        attempt = self._attempt
        if verdict is Verdict.OLDER or attempt is None or not attempt.underway:
            return ()  # the remains of an attempt that is over
        if isinstance(message, Running):
            if node not in attempt.unstarted:
                raise PeerFault(f"{node} says that it runs: it was not told to start, or has said so before.")
            return self._running(attempt._replace(unstarted=attempt.unstarted - {node}))
        if node not in attempt.unready:
            raise PeerFault(f"{node} answers the order of incarnation {message.incarnation} a second time.")
        if isinstance(message, Refused):
            return self._anew(f"{node} refused: {message.reason}")
        return self._ready(attempt._replace(unready=attempt.unready - {node}))

    # ── rules; the mutants in the tests override exactly these ──────────────────────────────────────────────────────

    def _begin(self) -> tuple[RestoreCoordinatorEffect, ...]:
        """Claim a new incarnation, then order every node: a node that is missing is waited for first."""
        attempt = self._attempt
        if attempt is None or attempt.underway or self._missing:
            return ()
        self.incarnation = Incarnation(self.incarnation + 1)
        deadline = self._now + self.timeout
        everyone = frozenset(self.nodes)
        self._attempt = attempt._replace(underway=True, unready=everyone, unstarted=frozenset(), deadline=deadline)
        order = RestoreOrder(self.incarnation, self.timeline, attempt.snapshot)
        orders = (ToNode(node, order) for node in self.nodes)
        return (ClaimIncarnation(self.incarnation, self.timeline), *orders, WakeAt(deadline))

    def _ready(self, attempt: _Attempt) -> tuple[RestoreCoordinatorEffect, ...]:
        """Rule 1: start when the last one is ready."""
        self._attempt = attempt
        if attempt.unready:
            return ()
        self._attempt = attempt._replace(unstarted=frozenset(self.nodes))
        return tuple(ToNode(node, Start(self.incarnation)) for node in self.nodes)

    def _running(self, attempt: _Attempt) -> tuple[RestoreCoordinatorEffect, ...]:
        self._attempt = attempt
        if attempt.unstarted:
            return ()
        self._attempt = None
        return (Restored(self.incarnation, self.timeline, attempt.snapshot),)

    def _anew(self, reason: str) -> tuple[RestoreCoordinatorEffect, ...]:
        assert self._attempt is not None
        if self._attempt.number >= self.attempts:
            return self._give_up(f"{reason} (attempt {self._attempt.number} of {self.attempts})")
        if not self._attempt.unready:
            # The starts are out: somebody may have written under this timeline.
            self.timeline = Timeline(self.timeline + 1)
        self._attempt = _Attempt(self._attempt.snapshot, self._attempt.number + 1)
        return self._begin()

    def _give_up(self, reason: str) -> tuple[RestoreCoordinatorEffect, ...]:
        assert self._attempt is not None
        snapshot = self._attempt.snapshot
        self._attempt = None
        return (RestoreFailed(snapshot, reason),)

    def _stand_down(self, newer: Incarnation) -> tuple[RestoreCoordinatorEffect, ...]:
        if newer <= self.incarnation:
            raise HostFault(f"Incarnation {newer} cannot supersede {self.incarnation}.")
        self._over = True
        return (StandDown(newer),)

    def _check_node(self, node: NodeId) -> None:
        if node not in self.nodes:
            raise HostFault(f"{node!r} is no node of this system.")


class Phase(Enum):
    STOPPED = "stopped"
    LOADING = "loading"
    READY = "ready"
    RUNNING = "running"


class RestoreParticipant:
    """One node: a new process is stopped and waits for its first order.

    All state is in immutable values: a shallow copy is a full copy.
    """

    def __init__(self, node: NodeId, *, incarnation: Incarnation = Incarnation(0)) -> None:  # noqa: B008
        """`incarnation` is the highest that this node knows of; it need not remember any."""
        self.node = node
        self.incarnation = incarnation
        self.phase = Phase.STOPPED
        self._timeline = Timeline(0)
        self._held: tuple[Deliver, ...] = ()

    def key(self) -> object:
        return self.incarnation, self.phase, self._timeline, self._held

    def step(self, input: RestoreParticipantInput) -> tuple[RestoreParticipantEffect, ...]:
        if isinstance(input, Fenced):
            return self._message(input)
        if isinstance(input, Sending):
            return self._send(input)
        if isinstance(input, RestoreOrder):
            return self._order(input)
        if isinstance(input, StateLoaded):
            return self._loaded(input.incarnation)
        if isinstance(input, LoadFailed):
            return self._load_failed(input.incarnation, input.reason)
        if isinstance(input, Start):
            return self._start(input.incarnation)
        raise HostFault(f"A node in a restore takes no {type(input).__name__}.")

    def _order(self, order: RestoreOrder) -> tuple[RestoreParticipantEffect, ...]:
        verdict = Fence(self.incarnation).judge(order.incarnation)
        if verdict is Verdict.OLDER:
            return ()
        if verdict is Verdict.CURRENT:
            raise PeerFault(f"A second order for incarnation {order.incarnation} came: each attempt needs its own.")
        stop = self._stop(order.incarnation)
        self.phase = Phase.LOADING
        self._timeline = order.timeline
        return (*stop, *self._load(LoadState(order.incarnation, order.timeline, order.snapshot)))

    def _loaded(self, incarnation: Incarnation) -> tuple[RestoreParticipantEffect, ...]:
        if not self._awaited(incarnation):
            return ()
        self.phase = Phase.READY
        return (ToCoordinator(Ready(self.node, incarnation)),)

    def _load_failed(self, incarnation: Incarnation, reason: str) -> tuple[RestoreParticipantEffect, ...]:
        if not self._awaited(incarnation):
            return ()
        self.phase = Phase.STOPPED
        return (ToCoordinator(Refused(self.node, incarnation, reason)),)

    def _start(self, incarnation: Incarnation) -> tuple[RestoreParticipantEffect, ...]:
        verdict = Fence(self.incarnation).judge(incarnation)
        if verdict is Verdict.OLDER:
            return ()
        if verdict is Verdict.NEWER:
            return self._stop(incarnation)
        if self.phase is Phase.STOPPED:
            return ()  # an earlier process of this node was ready; this one has loaded nothing
        if self.phase is not Phase.READY:
            raise PeerFault(f"Incarnation {incarnation} was started while {self.node} is {self.phase.value}.")
        return self._run()

    def _message(self, arrived: Fenced) -> tuple[RestoreParticipantEffect, ...]:
        verdict = self._judge_message(arrived.incarnation)
        if verdict is Verdict.OLDER:
            return ()
        if verdict is Verdict.NEWER:
            return self._stop(arrived.incarnation)
        deliver = Deliver(arrived.channel, arrived.message)
        if self.phase is Phase.RUNNING:
            return (deliver,)
        if self.phase is Phase.READY:
            return self._hold(deliver)
        if self.phase is Phase.STOPPED:
            return ()  # this process is no part of that life
        raise PeerFault(
            f"A message of incarnation {arrived.incarnation} came on {arrived.channel!r} while {self.node} is loading: "
            "somebody started before everyone was ready."
        )

    def _send(self, sending: Sending) -> tuple[RestoreParticipantEffect, ...]:
        if self.phase is not Phase.RUNNING:
            raise HostFault(f"The application of {self.node} sends on {sending.channel!r} while it is not running.")
        return (SendFenced(sending.channel, sending.message, self.incarnation),)

    def _awaited(self, incarnation: Incarnation) -> bool:
        """Whether this load is the one that was asked for last; an older one is pointless, another one nonsense."""
        if incarnation < self.incarnation:
            return False
        if incarnation > self.incarnation or self.phase is not Phase.LOADING:
            raise HostFault(f"{self.node} was not loading a state for incarnation {incarnation}.")
        return True

    # ── rules; the mutants in the tests override exactly these ──────────────────────────────────────────────────────

    def _load(self, load: LoadState) -> tuple[RestoreParticipantEffect, ...]:
        """Ready is said when the host has answered, not before."""
        return (load,)

    def _judge_message(self, incarnation: Incarnation) -> Verdict:
        return Fence(self.incarnation).judge(incarnation)

    def _hold(self, deliver: Deliver) -> tuple[RestoreParticipantEffect, ...]:
        """A peer was started first. What it sends belongs to this life, but comes after the start."""
        self._held = (*self._held, deliver)
        return ()

    def _run(self) -> tuple[RestoreParticipantEffect, ...]:
        held, self._held = self._held, ()
        self.phase = Phase.RUNNING
        start = StartApplication(self.incarnation, self._timeline)
        return (start, *held, ToCoordinator(Running(self.node, self.incarnation)))

    def _stop(self, newer: Incarnation) -> tuple[RestoreParticipantEffect, ...]:
        """This life is over. What was held belongs to it."""
        was_running = self.phase is Phase.RUNNING
        self.incarnation = newer
        self.phase = Phase.STOPPED
        self._held = ()
        return (StopApplication(),) if was_running else ()

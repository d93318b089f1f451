"""One node in a restore: stops, loads, starts when told to, and keeps the fence between incarnations.

A node loads its part, says so, and starts when it is told to.

>>> from strobe.model.ids import SnapshotId, Timeline
>>> node = RestoreParticipant(NodeId("a"), incarnation=Incarnation(3))
>>> node.step(RestoreOrder(Incarnation(4), Timeline(2), SnapshotId(7)))
(LoadState(incarnation=4, timeline=2, snapshot=7),)
>>> node.step(StateLoaded(Incarnation(4)))
(ToCoordinator(message=Ready(node='a', incarnation=4)),)
>>> [type(effect).__name__ for effect in node.step(Start(Incarnation(4)))]
['StartApplication', 'ToCoordinator']
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from strobe.model.errors import HostFault, PeerFault
from strobe.model.ids import Incarnation, NodeId, Timeline
from strobe.protocol.events import Deliver, Sending
from strobe.protocol.restore.messages import (
    Fence,
    Fenced,
    LoadFailed,
    LoadState,
    Ready,
    Refused,
    RestoreOrder,
    RestoreParticipantEffect,
    RestoreParticipantInput,
    Running,
    SendFenced,
    Start,
    StartApplication,
    StateLoaded,
    StopApplication,
    ToCoordinator,
    Verdict,
)
from strobe.protocol.transitions import Transitions

__all__ = ["TRANSITIONS", "Phase", "RestoreParticipant"]


class Phase(Enum):
    STOPPED = "stopped"
    LOADING = "loading"
    READY = "ready"
    RUNNING = "running"


TRANSITIONS: Final = Transitions(
    Phase.STOPPED,
    {
        (Phase.STOPPED, "order"): Phase.LOADING,
        (Phase.LOADING, "state loaded"): Phase.READY,
        (Phase.LOADING, "load failed"): Phase.STOPPED,
        (Phase.READY, "start"): Phase.RUNNING,
        (Phase.STOPPED, "newer incarnation"): Phase.STOPPED,
        (Phase.LOADING, "newer incarnation"): Phase.STOPPED,
        (Phase.READY, "newer incarnation"): Phase.STOPPED,
        (Phase.RUNNING, "newer incarnation"): Phase.STOPPED,
    },
)


class RestoreParticipant:
    """One node: a new process is stopped and waits for its first order.

    All state is in immutable values: a shallow copy is a full copy.
    """

    def __init__(self, node: NodeId, *, incarnation: Incarnation = Incarnation(0)) -> None:  # noqa: B008
        """`incarnation` is the highest that this node knows of; it need not remember any."""
        self.node = node
        self.incarnation = incarnation
        self.phase = TRANSITIONS.first
        self._timeline = Timeline(0)
        self._held: tuple[Deliver, ...] = ()

    def key(self) -> object:
        return self.incarnation, self.phase, self._timeline, self._held

    def step(self, input: RestoreParticipantInput) -> tuple[RestoreParticipantEffect, ...]:
        match input:
            case Fenced():
                return self._message(input)
            case Sending():
                return self._send(input)
            case RestoreOrder():
                return self._order(input)
            case StateLoaded():
                return self._loaded(input.incarnation)
            case LoadFailed():
                return self._load_failed(input.incarnation, input.reason)
            case Start():
                return self._start(input.incarnation)
            case _:
                raise HostFault(f"A node in a restore takes no {type(input).__name__}.")

    def _order(self, order: RestoreOrder) -> tuple[RestoreParticipantEffect, ...]:
        verdict = Fence(self.incarnation).judge(order.incarnation)
        if verdict is Verdict.OLDER:
            return ()
        if verdict is Verdict.CURRENT:
            raise PeerFault(f"A second order for incarnation {order.incarnation} came: each attempt needs its own.")
        stop = self._stop(order.incarnation)
        self.phase = TRANSITIONS.after(self.phase, "order")
        self._timeline = order.timeline
        return (*stop, *self._load(LoadState(order.incarnation, order.timeline, order.snapshot)))

    def _loaded(self, incarnation: Incarnation) -> tuple[RestoreParticipantEffect, ...]:
        if not self._awaited(incarnation):
            return ()
        self.phase = TRANSITIONS.after(self.phase, "state loaded")
        return (ToCoordinator(Ready(self.node, incarnation)),)

    def _load_failed(self, incarnation: Incarnation, reason: str) -> tuple[RestoreParticipantEffect, ...]:
        if not self._awaited(incarnation):
            return ()
        self.phase = TRANSITIONS.after(self.phase, "load failed")
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
            return ()  # this process is not part of that life
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
        self.phase = TRANSITIONS.after(self.phase, "start")
        start = StartApplication(self.incarnation, self._timeline)
        return (start, *held, ToCoordinator(Running(self.node, self.incarnation)))

    def _stop(self, newer: Incarnation) -> tuple[RestoreParticipantEffect, ...]:
        """This life is over. What was held belongs to it."""
        was_running = self.phase is Phase.RUNNING
        self.incarnation = newer
        self.phase = TRANSITIONS.after(self.phase, "newer incarnation")
        self._held = ()
        return (StopApplication(),) if was_running else ()

"""Scenarios of a restore: the coordinator `c`, nodes that load and start, and application messages between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strobe.model.errors import ProtocolError
from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId, Timeline
from strobe.protocol.coordinator.messages import NodeLost, Tick, WakeAt
from strobe.protocol.events import Deliver, Sending
from strobe.protocol.restore import RestoreCoordinator, RestoreParticipant
from strobe.protocol.restore import messages as rs
from tests.scenarios.harness import BadScenario, Setup, refusal
from tests.scenarios.post import Post

__all__ = ["RestoreWorld"]

C = NodeId("c")


class RestoreWorld:
    def __init__(
        self,
        setup: Setup,
        *,
        coordinator: Callable[..., RestoreCoordinator] = RestoreCoordinator,
        participant: Callable[..., RestoreParticipant] = RestoreParticipant,
    ) -> None:
        self.make_coordinator, self.make_participant = coordinator, participant
        self.names = tuple(NodeId(n) for n in setup.words("nodes"))
        self.settings = {k: int(v) for k, v in (word.split("=") for word in setup.words("settings"))}
        self.post = Post()
        self.claimed = (Incarnation(0), Timeline(0))
        self.machines: dict[NodeId, Any] = {n: participant(n) for n in self.names}
        self.machines[C] = self._coordinator()

    def _coordinator(self) -> RestoreCoordinator:
        incarnation, timeline = self.claimed
        return self.make_coordinator(self.names, incarnation=incarnation, timeline=timeline, **self.settings)

    def do(self, verb: str, words: tuple[str, ...]) -> list[str]:
        reason = " ".join(words[1:])
        match verb, words:
            case "deliver", (way, *which):
                receiver, message = self.post.take(way, *which)
                return [f"{receiver}  hears: {_message(message)}", *self._step(NodeId(receiver), message)]
            case "request", (snapshot,):
                return self._step(C, rs.RestoreRequested(SnapshotId(int(snapshot))))
            case "cancel", _:
                return self._step(C, rs.CancelRestore(" ".join(words)))
            case "tick", (now,):
                return self._step(C, Tick(int(now)))
            case "lost", (name, *_):
                return self._step(C, NodeLost(NodeId(name), reason))
            case "returned", (name,):
                return self._step(C, rs.NodeReturned(NodeId(name)))
            case "superseded", (incarnation,):
                return self._step(C, rs.Superseded(Incarnation(int(incarnation))))
            case "loaded", (name, incarnation):
                return self._step(NodeId(name), rs.StateLoaded(Incarnation(int(incarnation))))
            case "unloadable", (name, incarnation, *why):
                return self._step(NodeId(name), rs.LoadFailed(Incarnation(int(incarnation)), " ".join(why)))
            case "send", (way, text):
                return self._step(NodeId(way.partition("->")[0]), Sending(ChannelId(way), text))
            case "inject", (way, text, incarnation):
                return self._inject(way, text, Incarnation(int(incarnation)))
            case "crash", (name,):
                return self._crash(NodeId(name))
        raise BadScenario(f"there is no command {verb!r} with these words")

    def _inject(self, way: str, text: str, incarnation: Incarnation) -> list[str]:
        """Something that no machine sent: an order to start, or an application message."""
        sender, _, receiver = way.partition("->")
        message = rs.Start(incarnation) if sender == C else rs.Fenced(ChannelId(way), text, incarnation)
        self.post.put(sender, receiver, message)
        return [f"{way}  {_message(message)}"]

    def _crash(self, name: NodeId) -> list[str]:
        """The process forgets everything, and a new one stands in its place."""
        self.machines[name] = self._coordinator() if name == C else self.make_participant(name)
        return [f"{name}  is a new process"]

    def _step(self, name: NodeId, input: object) -> list[str]:
        machine = self.machines[name]
        before = machine.key()
        try:
            effects = machine.step(input)
        except ProtocolError as fault:
            assert machine.key() == before, f"{input} was refused, but changed {name}"
            return [f"{name}  {refusal(fault)}"]
        return [f"{name}  {self._perform(name, effect)}" for effect in effects]

    def _perform(self, name: NodeId, effect: object) -> str:
        match effect:
            case rs.ToNode(node, message):
                self.post.put(name, node, message)
                return f"to {node}: {_message(message)}"
            case rs.ToCoordinator(message):
                self.post.put(name, C, message)
                return f"to c: {_message(message)}"
            case rs.SendFenced(channel, message, incarnation):
                sender, _, receiver = channel.partition("->")
                self.post.put(sender, receiver, rs.Fenced(channel, message, incarnation))
                return f"send {message} on {channel}, incarnation {incarnation}"
            case rs.ClaimIncarnation(incarnation, timeline):
                self.claimed = (incarnation, timeline)
                return f"claim incarnation {incarnation}, timeline {timeline}"
            case rs.Restored(incarnation, timeline, snapshot):
                return f"restored {snapshot}: incarnation {incarnation}, timeline {timeline}"
            case rs.RestoreFailed(snapshot, reason):
                return f"restore of {snapshot} failed: {reason}"
            case rs.StandDown(newer):
                return f"stand down before incarnation {newer}"
            case rs.LoadState(incarnation, timeline, snapshot):
                return f"load {snapshot} for incarnation {incarnation}, timeline {timeline}"
            case rs.StopApplication():
                return "stop the application"
            case rs.StartApplication(incarnation, timeline):
                return f"start the application in incarnation {incarnation}, timeline {timeline}"
            case Deliver(channel, message):
                return f"deliver {message} from {channel}"
            case WakeAt(at):
                return f"wake at {at}"
        raise BadScenario(f"this host cannot perform {effect}")


def _message(message: object) -> str:
    match message:
        case rs.RestoreOrder(incarnation, timeline, snapshot):
            return f"load {snapshot} for incarnation {incarnation}, timeline {timeline}"
        case rs.Start(incarnation):
            return f"start {incarnation}"
        case rs.Ready(_, incarnation):
            return f"ready for {incarnation}"
        case rs.Refused(_, incarnation, reason):
            return f"refused {incarnation}: {reason}"
        case rs.Running(_, incarnation):
            return f"running {incarnation}"
        case rs.Fenced(_, text, incarnation):
            return f"{text} of incarnation {incarnation}"
    raise BadScenario(f"unknown message {message}")

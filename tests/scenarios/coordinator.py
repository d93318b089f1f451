"""Scenarios of the coordinator: who asked, who answered, what the clock showed, and what it orders then."""

from __future__ import annotations

from typing import Any

from strobe.model.errors import ProtocolError
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.model.kind import Kind
from strobe.protocol.coordinator import Coordinator
from strobe.protocol.coordinator import messages as co
from tests.scenarios.harness import BadScenario, Setup, refusal

__all__ = ["CoordinatorWorld"]


class CoordinatorWorld:
    def __init__(self, setup: Setup) -> None:
        upstream: dict[NodeId, list[NodeId]] = {NodeId(n): [] for n in setup.words("nodes")}
        for channel in setup.words("channels"):
            source, target = (NodeId(end) for end in channel.split("->"))
            upstream.setdefault(source, [])
            upstream.setdefault(target, []).append(source)
        settings = dict(word.split("=") for word in setup.words("settings"))
        values: dict[str, Any] = {k: int(v) for k, v in settings.items()}
        self.coordinator = Coordinator(upstream, co.CoordinatorSettings(**values))
        self.lives: dict[NodeId, Incarnation] = {}

    def do(self, verb: str, words: tuple[str, ...]) -> list[str]:
        before = self.coordinator.key()
        try:
            effects = self.coordinator.step(self._input(verb, words))
        except ProtocolError as fault:
            assert self.coordinator.key() == before, f"{verb} {words} was refused, but changed the coordinator"
            return [refusal(fault)]
        return [_line(effect) for effect in effects]

    def _input(self, verb: str, words: tuple[str, ...]) -> co.CoordinatorInput:
        reason = " ".join(words[1:])
        match verb, words:
            case "tick", (now,):
                return co.Tick(int(now))
            case "ready", (who,):
                node, incarnation = self._life(who)
                self.lives[node] = incarnation
                return co.NodeReady(node, incarnation)
            case "lost", (node, *_):
                return co.NodeLost(NodeId(node), reason)
            case "all-lost", _:
                return co.AllLost(" ".join(words))
            case "trigger", (request, kind):
                return co.TriggerRequested(request, Kind(kind))
            case "ack", (snapshot, who):
                return co.Acknowledged(_id(snapshot), *self._life(who))
            case "decline", (snapshot, who, *why):
                return co.DeclinedBy(_id(snapshot), *self._life(who), " ".join(why))
            case "written", (snapshot,):
                return co.ManifestWritten(_id(snapshot))
            case "failed", (snapshot, *_):
                return co.ManifestFailed(_id(snapshot), reason)
            case "refused", (snapshot, *_):
                return co.CutRefused(_id(snapshot), reason)
            case "abort", (snapshot, *_):
                return co.AbortRequested(_id(snapshot), reason)
        raise BadScenario(f"there is no command {verb!r} with these words")

    def _life(self, who: str) -> tuple[NodeId, Incarnation]:
        """`a@2` is a's second incarnation; `a` is the one that was last ready, or the first."""
        name, _, number = who.partition("@")
        node = NodeId(name)
        return node, Incarnation(int(number)) if number else self.lives.get(node, Incarnation(1))


def _line(effect: co.CoordinatorEffect) -> str:
    match effect:
        case co.Trigger(snapshot, kind, nodes):
            return f"start {kind.value} {snapshot} at {', '.join(nodes)}"
        case co.WriteManifest(snapshot, kind):
            return f"write the manifest of {kind.value} {snapshot}"
        case co.AnnounceComplete(snapshot, kind):
            return f"{kind.value} {snapshot} complete"
        case co.AnnounceAbort(snapshot, kind, reason):
            return f"{kind.value} {snapshot} aborted: {reason}"
        case co.Dispose(snapshot):
            return f"dispose of checkpoint {snapshot}"
        case co.Reply(request, snapshot, failure):
            named = "no snapshot" if snapshot is None else f"snapshot {snapshot}"
            return f"reply to {request}: {named}" + (f", failed: {failure}" if failure else "")
        case co.FailJob(reason):
            return f"fail the job: {reason}"
        case co.WakeAt(at):
            return f"wake at {at}"


def _id(word: str) -> SnapshotId:
    return SnapshotId(int(word))

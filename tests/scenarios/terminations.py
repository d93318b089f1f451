"""Scenarios of termination detection: work goes along the channels, signals come back, channels may reorder."""

from __future__ import annotations

from collections.abc import Callable

from strobe.model.errors import ProtocolError
from strobe.model.graph import Channel, Graph
from strobe.model.ids import ChannelId, NodeId
from strobe.protocol import dijkstra_scholten as ds
from tests.scenarios.harness import BadScenario, Setup, refusal

__all__ = ["TerminationWorld"]


class TerminationWorld:
    def __init__(self, setup: Setup, *, make: Callable[..., ds.DijkstraScholten] = ds.DijkstraScholten) -> None:
        channels = []
        for word in setup.words("channels"):
            source, target = word.split("->")
            channels.append(Channel(ChannelId(word), NodeId(source), NodeId(target.split(".")[0])))
        nodes = dict.fromkeys(end for c in channels for end in (c.source, c.target))
        self.graph = Graph(tuple(nodes), tuple(channels))
        root = dict(word.split("=") for word in setup.words("settings"))["root"]
        self.machines = {n: make(self.graph.inputs(n), self.graph.outputs(n), root=n == root) for n in nodes}
        self.work: dict[ChannelId, list[str]] = {c.id: [] for c in channels}
        self.signals = dict.fromkeys(self.work, 0)

    def do(self, verb: str, words: tuple[str, ...]) -> list[str]:
        match verb, words:
            case "start", (node,):
                return self._step(NodeId(node), ds.StartWork())
            case "idle", (node,):
                return self._step(NodeId(node), ds.BecameIdle())
            case "send", (channel, text):
                end = self.graph.by_id[ChannelId(channel)]
                return self._step(end.source, ds.SendingWork(end.id, text))
            case "deliver", (channel, *which):
                end = self.graph.by_id[ChannelId(channel)]
                index = int(which[0].removeprefix("#")) - 1 if which else 0
                return self._step(end.target, ds.WorkArrived(end.id, self.work[end.id].pop(index)))
            case "signal", (channel,):
                end = self.graph.by_id[ChannelId(channel)]
                if not self.signals[end.id]:
                    raise BadScenario(f"no signal for {channel} is on its way")
                self.signals[end.id] -= 1
                return self._step(end.source, ds.SignalArrived(end.id))
            case "inject", (channel, "signal"):
                self.signals[ChannelId(channel)] += 1
                return [f"{channel}  signal"]
            case "show", ():
                return self._show()
        raise BadScenario(f"there is no command {verb!r} with these words")

    def _show(self) -> list[str]:
        told = []
        for node, machine in self.machines.items():
            tree = "in the tree" if machine.engaged else "outside the tree"
            told.append(f"{node}  {'active' if machine.active else 'idle'}, {tree}")
        told += [f"{c}  work: {', '.join(work)}" for c, work in self.work.items() if work]
        return told + [f"{c}  signals: {count}" for c, count in self.signals.items() if count]

    def _step(self, node: NodeId, input: ds.TerminationInput) -> list[str]:
        machine = self.machines[node]
        before = machine.key()
        try:
            effects = machine.step(input)
        except ProtocolError as fault:
            assert machine.key() == before, f"{input} was refused, but changed {node}"
            return [f"{node}  {refusal(fault)}"]
        return [f"{node}  {self._perform(effect)}" for effect in effects]

    def _perform(self, effect: ds.TerminationEffect) -> str:
        match effect:
            case ds.DeliverWork(channel, message):
                return f"deliver {message} from {channel}"
            case ds.SendWork(channel, message):
                self.work[channel].append(message)
                return f"send {message} on {channel}"
            case ds.SendSignal(channel):
                self.signals[channel] += 1
                return f"signal for {channel}"
            case ds.Terminated():
                return "terminated"

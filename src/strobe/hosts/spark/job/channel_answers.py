"""What the gate's sources are told: each question goes to the agent of the stage that asks it."""

from __future__ import annotations

from collections.abc import Mapping

from strobe.hosts.spark.channel.log import DataFile
from strobe.hosts.spark.checkpoint.stage_files import start_positions
from strobe.hosts.spark.stage.agent import StageAgent
from strobe.model.ids import ChannelId, NodeId

__all__ = ["ChannelAnswers"]


class ChannelAnswers:
    """A `GateHandler` for the stages of a job. Nobody asks before their agent is among `agents`."""

    def __init__(self, agents: Mapping[NodeId, StageAgent]) -> None:
        self._agents = agents

    def latest(self, stage: NodeId, channel: ChannelId, start: int, reader: str) -> int:
        return self._agents[stage].latest(reader, NodeId(channel), start)

    def available(self, stage: NodeId, channel: ChannelId) -> int:
        return self._agents[stage].inputs[NodeId(channel)].end

    def initial(self, stage: NodeId, channel: ChannelId) -> int:
        return start_positions(self._agents[stage].checkpoint).get(NodeId(channel), 0)

    def files(self, stage: NodeId, channel: ChannelId, start: int, end: int) -> tuple[DataFile, ...]:
        return tuple(f for c in self._agents[stage].inputs[NodeId(channel)].commits(start, end) for f in c.files)

    def committed(self, stage: NodeId, channel: ChannelId, end: int) -> None:
        """The agent reads Spark's own offset log instead: it must know at once, not one batch later."""

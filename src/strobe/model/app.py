"""What runs on the nodes: an application as pure functions from a state and an input to a state and sends.

All randomness is in the action that the host hands in, so replaying a journal's actions and messages gives the same
states and sends again: that is what the verifier's proof and the simulator's replay rest on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from strobe.model.cut import Json
from strobe.model.ids import ChannelId, NodeId

__all__ = ["Application", "Reaction", "Sends"]

Sends: TypeAlias = Sequence[tuple[ChannelId, Json]]
Reaction: TypeAlias = tuple[Json, Sends]


class Application(Protocol):
    """States are JSON values. A function returns a new state and never changes the one that it was given."""

    def initial(self, node: NodeId) -> Json: ...

    def act(self, node: NodeId, state: Json, action: Json) -> Reaction:
        """The node acts by itself."""
        ...

    def receive(self, node: NodeId, state: Json, channel: ChannelId, payload: Json) -> Reaction: ...

"""What a snapshot says: a state for each node and a content for each channel.

States and payloads are JSON values. `canonical` is their one byte form: two states are the same exactly when these
bytes are, which is what "bit for bit" means throughout Strobe.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from strobe.model.ids import ChannelId, NodeId, SnapshotId

__all__ = ["Cut", "Json", "Message", "canonical"]

Json: TypeAlias = Any  # None, bool, int, float, str, list or dict of these; recursive aliases cost more than they tell


class Message(NamedTuple):
    """A message. `seq` counts the channel's sends from 1; with the channel it is the message's identity."""

    seq: int
    payload: Json


@dataclass(frozen=True, slots=True)
class Cut:
    """A recorded global state. `channels` holds, in order, what was in flight on each channel."""

    snapshot: SnapshotId
    states: Mapping[NodeId, Json]
    channels: Mapping[ChannelId, tuple[Message, ...]]


def canonical(value: Json) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()

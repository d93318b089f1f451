"""What the checkers find: which rule was broken, by which message, at which two events, in a sentence.

Every rule is a member of `Rule`, and `MEANING` says each in one line: the reference page is made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from strobe.model.cut import Json, Message
from strobe.model.events import Event
from strobe.model.ids import ChannelId, NodeId, SnapshotId
from strobe.verify.lines import fields_of

__all__ = ["MEANING", "Place", "Rule", "Violation"]


class Rule(StrEnum):
    # Law 1: the cut.
    EFFECT_WITHOUT_CAUSE = "effect-without-cause"
    MISSING_MESSAGE = "missing-message"
    EXTRA_MESSAGE = "extra-message"
    LATE_MESSAGE = "late-message"
    INVENTED_MESSAGE = "invented-message"
    ALTERED_MESSAGE = "altered-message"
    CONTENT_ORDER = "content-order"
    LOST_MESSAGE = "lost-message"
    DUPLICATE_MESSAGE = "duplicate-message"
    # The cut is whole.
    MISSING_RECORD = "missing-record"
    MISSING_STATE = "missing-state"
    MISSING_CHANNEL = "missing-channel"
    UNKNOWN_NAME = "unknown-name"
    RECORDED_TWICE = "recorded-twice"
    COMPLETED_TWICE = "completed-twice"
    # The channels.
    FIFO_ORDER = "fifo-order"
    DUPLICATE_DELIVERY = "duplicate-delivery"
    RECEIVE_WITHOUT_SEND = "receive-without-send"
    STALE_MESSAGE = "stale-message"
    WRONG_END = "wrong-end"
    # The nodes, and the journal itself.
    STEP_ORDER = "step-order"
    SEQ_ORDER = "seq-order"
    RECORD_ORDER = "record-order"
    CAUSAL_LOOP = "causal-loop"
    RESTART_CUT = "restart-cut"
    # The markers.
    MARKER_COUNT = "marker-count"
    MARKER_ORDER = "marker-order"
    MARKER_OVERTOOK = "marker-overtook"
    # Cuts of logs, by position.
    RANGE_MISMATCH = "range-mismatch"
    POSITION_BACKWARDS = "position-backwards"


MEANING: Final[Mapping[Rule, str]] = {
    Rule.EFFECT_WITHOUT_CAUSE: "received before the receiver's recording, but sent after the sender's",
    Rule.MISSING_MESSAGE: "sent before the sender's recording and not received before the receiver's, but not recorded",
    Rule.EXTRA_MESSAGE: "recorded in the channel although the receiver's state contains it already",
    Rule.LATE_MESSAGE: "recorded in the channel although it was sent only after the sender's recording",
    Rule.INVENTED_MESSAGE: "recorded in the channel although nobody sent it",
    Rule.ALTERED_MESSAGE: "recorded in the channel with another payload than it was sent with",
    Rule.CONTENT_ORDER: "a channel's messages are recorded in another order than they were sent in",
    Rule.LOST_MESSAGE: "sent before the sender's recording and dropped by the channel: in no state, in no channel",
    Rule.DUPLICATE_MESSAGE: "the channel delivered the message again, and the cut counts it more than once",
    Rule.MISSING_RECORD: "a node never recorded for a snapshot that is called complete",
    Rule.MISSING_STATE: "a complete snapshot has no state for a node",
    Rule.MISSING_CHANNEL: "a complete snapshot has no content for a channel",
    Rule.UNKNOWN_NAME: "a snapshot names a node or a channel that the graph does not have",
    Rule.RECORDED_TWICE: "a node recorded twice for one snapshot",
    Rule.COMPLETED_TWICE: "a snapshot was completed twice in one incarnation",
    Rule.FIFO_ORDER: "a channel that promises order delivered a message before an earlier one",
    Rule.DUPLICATE_DELIVERY: "a message was received more than once",
    Rule.RECEIVE_WITHOUT_SEND: "a message was received that nobody sent",
    Rule.STALE_MESSAGE: "a message of an older incarnation was received",
    Rule.WRONG_END: "a node sent or received on a channel whose end it is not",
    Rule.STEP_ORDER: "a node's steps are not counted one by one, or a step does not begin with its one cause",
    Rule.SEQ_ORDER: "a channel's messages are not numbered one by one",
    Rule.RECORD_ORDER: "a recording or marker does not stand after the step that it names",
    Rule.CAUSAL_LOOP: "steps wait for each other's messages: no order of them is possible",
    Rule.RESTART_CUT: "a restart began from something else than the snapshot that it names",
    Rule.MARKER_COUNT: "not exactly one marker was sent and received on a channel for a snapshot",
    Rule.MARKER_ORDER: "a marker did not go out between the sender's recording and its next step",
    Rule.MARKER_OVERTOOK: "a marker arrived before messages that were sent ahead of it, or after later ones",
    Rule.RANGE_MISMATCH: "a recorded range is not what lies between the consumed and the barrier's position",
    Rule.POSITION_BACKWARDS: "a position is lower than in the snapshot before",
}


@dataclass(frozen=True, slots=True)
class Place:
    """An event and where it stands. `position` counts the journal's events from 0."""

    position: int
    event: Event

    @property
    def line(self) -> int:
        """The line of the journal file: the header is line 1."""
        return self.position + 2


@dataclass(frozen=True, slots=True)
class Violation:
    """`first` and `second` are the two events that do not fit together, where there are two."""

    rule: Rule
    sentence: str
    snapshot: SnapshotId | None = None
    channel: ChannelId | None = None
    node: NodeId | None = None
    message: Message | None = None
    first: Place | None = None
    second: Place | None = None

    def __str__(self) -> str:
        return self.sentence

    def to_json(self) -> dict[str, Json]:
        return {
            "rule": self.rule.value,
            "sentence": self.sentence,
            "snapshot": self.snapshot,
            "channel": self.channel,
            "node": self.node,
            "message": None if self.message is None else list(self.message),
            "events": [[p.line, fields_of(p.event)] for p in (self.first, self.second) if p is not None],
        }

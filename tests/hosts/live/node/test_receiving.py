"""How a run of messages comes to its handler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from strobe.hosts.live.api.codec import encode_message, message
from strobe.hosts.live.node.receiving import hand_over
from strobe.model.errors import PeerFault
from tests.support.live.apps import Transfer


class Handler:
    def __init__(self) -> None:
        self.got: list[tuple[str, Any]] = []

    def __call__(self, sender: str, message: Any) -> int:
        self.got.append((sender, message))
        return len(self.got)


def test_messages_come_in_order_and_the_last_result_is_given_back() -> None:
    handler = Handler()
    assert hand_over(handler, "a", [encode_message(each) for each in (1, Transfer(2), [3])]) == 3
    assert handler.got == [("a", 1), ("a", Transfer(2)), ("a", [3])]


@pytest.mark.parametrize(
    "bad",
    [b"", b"\x01", b"\x92\xa0", b"\x92\xa3Who\x01", b"\x92\xa8Transfer\x01"],
    ids=["empty", "number", "cut off", "unknown", "wrong body"],
)
def test_those_before_one_that_cannot_be_read_are_handed_over(bad: bytes) -> None:
    handler = Handler()
    with pytest.raises(PeerFault):
        hand_over(handler, "a", [encode_message(1), bad, encode_message(2)])
    assert handler.got == [("a", 1)]


def test_an_error_of_the_handler_is_its_own_and_no_message_comes_twice() -> None:
    got = []

    def handler(sender: str, message: Any) -> None:
        got.append(message)
        raise msgspec.DecodeError("of the handler")

    with pytest.raises(msgspec.DecodeError, match="of the handler"):
        hand_over(handler, "a", [encode_message(1), encode_message(2)])
    assert got == [1]


def test_a_handler_may_register_the_class_of_the_next_message() -> None:
    got = []

    def handler(sender: str, received: Any) -> None:
        got.append(received)
        if len(got) == 1:

            @message
            @dataclass
            class CameLate:
                number: int

    hand_over(handler, "a", [encode_message(1), b"\x92\xa8CameLate\x81\xa6number\x07", encode_message(2)])
    assert [getattr(each, "number", each) for each in got] == [1, 7, 2]

"""Messages and states as bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.hosts.live.api.codec import (
    decode_message,
    decode_plain,
    decode_state,
    encode_message,
    encode_state,
    is_marker,
    item_to_json,
    marker_id,
    marker_item,
    message,
    message_from_json,
)
from strobe.model.errors import Misuse, PeerFault
from strobe.model.ids import SnapshotId


@message
class Mood(Enum):
    GLAD = "glad"
    SAD = "sad"


@dataclass(frozen=True)
class Leaf:
    name: str
    weight: float = 0.0


@message
@dataclass(frozen=True)
class Tree:
    leaves: list[Leaf]
    mood: Mood = Mood.GLAD
    raw: bytes = b""
    notes: dict[str, int] = field(default_factory=dict)


@message
@dataclass
class Anything:
    value: object


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
trees = st.builds(
    Tree,
    st.lists(st.builds(Leaf, st.text(), st.floats(allow_nan=False)), max_size=4),
    st.sampled_from(Mood),
    st.binary(),
    st.dictionaries(st.text(), st.integers(-(2**63), 2**63 - 1), max_size=3),
)


@given(plain | trees | st.sampled_from(Mood))
def test_what_was_sent_is_what_comes(value: object) -> None:
    item = encode_message(value)
    assert decode_message(item) == value
    assert not is_marker(item)


@given(st.integers(1, 2**62))
def test_a_marker_is_an_item_of_its_own_kind(number: int) -> None:
    item = marker_item(SnapshotId(number))
    assert is_marker(item)
    assert marker_id(item) == number == decode_plain(item)


@pytest.mark.parametrize(
    "item",
    [
        b"", b"\x92", b"\x92\xa0", b"\x92\xa0\x01\x02", b"\x93\xa0\x01\x02", b"\x91\xa0", b"\x81\xa0\x01",
        marker_item(SnapshotId(7)),
    ],
    ids=bytes.hex,
)  # fmt: skip
def test_an_item_that_is_no_pair_of_name_and_body_is_the_peers_fault(item: bytes) -> None:
    with pytest.raises(PeerFault):
        decode_message(item)


@pytest.mark.parametrize(
    "item",
    [
        b"",
        b"\x05",
        b"\xa2ab",
        b"\x91\xa1a",
        b"\x92\x01\x02",
        b"\x92\x90\x02",
        b"\x82\x00\x01\x01\x02",
        b"\x92\xc4\x01a\x02",
    ],
)
def test_an_item_that_is_no_message_cannot_be_shown(item: bytes) -> None:
    """It may come from a snapshot that somebody else has written."""
    with pytest.raises(PeerFault):
        item_to_json(item)


def test_a_class_that_is_registered_late_is_known_from_then_on() -> None:
    late = b"\x92\xacArrivesLater\x81\xa1x\x05"
    with pytest.raises(PeerFault, match="'ArrivesLater'"):
        decode_message(late)

    @message
    @dataclass
    class ArrivesLater:
        x: int

    assert decode_message(late) == ArrivesLater(5)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_the_peers_fault(data: bytes) -> None:
    try:
        decode_message(data)
    except PeerFault:
        return


@given(trees, st.data())
def test_a_message_with_changed_bytes_is_a_message_or_the_peers_fault(tree: Tree, data: st.DataObject) -> None:
    item = bytearray(encode_message(tree))
    item[data.draw(st.integers(0, len(item) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_message(bytes(item))
    except PeerFault:
        return


def test_a_message_that_cannot_be_sent_names_the_field() -> None:
    with pytest.raises(Misuse, match=r"Field 'value.inner\[1\]' of message Anything .* is of type object"):
        encode_message(Anything({"inner": [1, object()]}))


def test_a_number_beyond_64_bits_is_refused_by_name() -> None:
    with pytest.raises(Misuse, match="Field 'balance' of the state of a"):
        encode_state({"balance": 2**70}, "a")


def test_a_class_without_the_decorator_cannot_be_sent() -> None:
    with pytest.raises(Misuse, match="Leaf cannot be sent"):
        encode_message(Leaf("x"))


def test_a_field_of_the_wrong_type_is_the_peers_fault_and_named() -> None:
    good = encode_message(Tree([Leaf("a", 1.0)]))
    assert b"\xa4name\xa1a" in good
    with pytest.raises(PeerFault, match=r"Tree .*leaves\[0\]\.name"):
        decode_message(good.replace(b"\xa4name\xa1a", b"\xa4name\x05"))


def test_a_class_that_the_receiver_lacks_is_named() -> None:
    with pytest.raises(PeerFault, match="'Ghost'"):
        decode_message(b"\x92\xa5Ghost\x80")


def test_a_message_is_shown_without_its_class() -> None:
    item = encode_message(Tree([Leaf("a", 1.0)], Mood.SAD, b"\x00"))
    assert item_to_json(item) == {
        "type": "Tree", "leaves": [{"name": "a", "weight": 1.0}], "mood": "sad", "raw": "AA==", "notes": {}
    }  # fmt: skip
    assert item_to_json(encode_message({"a": 1.5, "b": [1]})) == {"a": 1.5, "b": [1]}
    shown = item_to_json(encode_message({"a": float("inf"), "b": [1]}))
    assert isinstance(shown, dict)
    assert shown["value"] == {"a": "inf", "b": [1]}, "JSON does not have that number, so its bytes go along"
    assert message_from_json(shown) == {"a": float("inf"), "b": [1]}
    assert item_to_json(encode_message(Mood.SAD)) == {"type": "Mood", "value": "sad"}


def test_a_state_comes_back_as_the_declared_type() -> None:
    stored = decode_plain(encode_state({"seen": {1, 2}, "tree": Tree([])}, "a"))
    assert decode_state(stored["seen"], set[int], "a") == {1, 2}
    assert decode_state(stored["tree"], Tree, "a") == Tree([])
    with pytest.raises(Misuse, match=r"state of a .*Expected `int`"):
        decode_state(["x"], set[int], "a")


def test_two_classes_of_one_name_are_refused() -> None:
    def again() -> type:
        @message
        @dataclass
        class Tree:
            x: int

        return Tree

    with pytest.raises(Misuse, match="Two messages are called Tree"):
        again()

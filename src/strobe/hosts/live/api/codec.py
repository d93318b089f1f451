"""Messages and states as bytes: typed, safe, and the same bytes wherever they are kept.

Theory
------
An *item* is what a channel carries: one MessagePack value. A message is `[name, body]`, where the name is that of a
registered class, or empty for a plain value (numbers, text, bytes, lists, dicts). A marker is a whole number, the id of
its snapshot. So an item needs no other context: what was recorded as a channel's content is what was sent, byte by
byte, and a reader who does not have the classes can still read it.

Nothing that arrives can name code to run: a name only picks a class that this process itself has registered, and the
body is checked against that class's annotations. What does not fit is an error that names the field.

A message is decoded by one call: all registered classes are one tagged union, in which the name picks the class. What
that call refuses is decoded again in two steps, which find out what is wrong.
"""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, NoReturn, Protocol, TypeVar, Union

import msgspec

from strobe.model.cut import Json
from strobe.model.errors import Misuse, PeerFault
from strobe.model.ids import SnapshotId
from strobe.model.text import shortened

__all__ = [
    "MESSAGE", "count_item", "count_of", "decode_message", "decode_plain", "decode_state", "decoding", "encode_message",
    "encode_state", "encoding", "is_marker", "is_stamped", "item_to_json",
    "marker_id", "marker_item", "message", "message_from_json", "number_of", "stamp_of", "stamped_item", "to_json",
    "unstamped",
]  # fmt: skip

C = TypeVar("C", bound=type)

MESSAGE: Final = 0x92  # the first byte of a message: an array of two
_MARKER: Final = 0xD3  # the first byte of a marker: a 64-bit whole number
_SHORT: Final = 0xA0  # the head of a text of up to 31 bytes, with the length in its low bits

_encode: Final = msgspec.msgpack.Encoder().encode
_plain: Final = msgspec.msgpack.Decoder().decode
_PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes, list, tuple, dict})

_heads: dict[type, bytes] = {}
_names: dict[type, str] = {}
_decoders: dict[bytes, Callable[[memoryview], Any]] = {}
_classes: dict[str, type] = {}
_Unreadable: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def message(cls: C) -> C:
    """Class decorator: instances of this dataclass or enum can be sent. Its name is its identity on the wire."""
    name = cls.__name__
    if not (dataclasses.is_dataclass(cls) or issubclass(cls, Enum)):
        raise Misuse(
            f"{name} cannot be a message: it is neither a dataclass nor an enum.",
            next="Put @dataclass below @message.",
        )
    if len(name.encode()) > 31:
        raise Misuse(f"{name} cannot be a message: its name is longer than 31 bytes.", next="Choose a shorter name.")
    other = _classes.get(name)
    if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
        raise Misuse(
            f"Two messages are called {name}: {other.__module__}.{other.__qualname__} and "
            f"{cls.__module__}.{cls.__qualname__}.",
            next="A message's name is its identity on the wire: rename one.",
        )
    try:
        decoder = msgspec.msgpack.Decoder(cls)
    except (TypeError, NameError) as error:
        raise Misuse(
            f"{name} cannot be a message: {error}.",
            next="Fields are numbers, text, bytes, enums, dataclasses, and lists or dicts of these.",
        ) from error
    encoded = name.encode()
    head = bytes((MESSAGE, _SHORT | len(encoded))) + encoded
    _classes[name] = cls
    _heads[cls] = head
    _names[cls] = name
    _decoders[head] = decoder.decode
    global _item  # noqa: PLW0603
    _item = _first_item
    return cls


# ── items ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_NO_NAME: Final = bytes((MESSAGE, _SHORT))
_decoders[_NO_NAME] = _plain
_heads.update(dict.fromkeys(_PLAIN, _NO_NAME))
_names.update(dict.fromkeys(_PLAIN, ""))


def encode_message(value: Any) -> bytes:
    """The item, or Misuse that names what cannot be sent."""
    try:
        head = _heads[value.__class__]
    except KeyError:
        raise Misuse(
            f"{type(value).__name__} cannot be sent: it is neither a plain value nor a class marked with @message.",
            untouched="Nothing was sent.",
            next="Put @message above the dataclass, in a module that sender and receiver import.",
        ) from None
    try:
        return head + _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        _refuse(value, f"message {type(value).__name__}", error)


def encoding() -> tuple[Mapping[type, str], Callable[[tuple[str, Any]], bytes]]:
    """The name for each class, and the encoder of a name and a message: the item, in one call. For the fast path of
    sending."""
    return _names, _encode


def decoding() -> Callable[[bytes], Any]:
    """The decoder of an item, whose result has the message as its `body`. For the fast path of receiving: what it
    refuses, `decode_message` decodes or explains."""
    return _item


def decode_message(item: bytes) -> Any:
    """The message, or PeerFault that names the class and the field."""
    try:
        return _item(item).body
    except _Unreadable:
        return _decode_in_steps(item)


def _decode_in_steps(item: bytes) -> Any:
    try:
        size = 2 + (item[1] & 0x1F)
        decode = _decoders[item[:size]]
    except (KeyError, IndexError):
        raise _unknown(item) from None
    try:
        return decode(memoryview(item)[size:])
    except _Unreadable as error:
        name = item[2:size].decode(errors="replace") or "plain value"
        raise PeerFault(f"A message {name} does not fit its class: {error}.") from None


class _Entry(Protocol):
    body: Any


def _first_item(item: bytes) -> _Entry:
    """The first message after a class was registered: from now on the union has that class, too."""
    global _item  # noqa: PLW0603
    kinds: Any = Union[tuple(_entry(name, cls) for name, cls in {**_classes, "": Any}.items())]  # noqa: UP007
    decode: Callable[[bytes], _Entry] = msgspec.msgpack.Decoder(kinds).decode
    _item = decode
    return decode(item)


def _entry(name: str, cls: Any) -> type:
    """`[name, body]`. It is never part of a cycle, so the garbage collector need not track it."""
    return msgspec.defstruct(
        f"Item_{name}", [("body", cls)], array_like=True, tag=name, forbid_unknown_fields=True, gc=False
    )


_item: Callable[[bytes], _Entry] = _first_item


def marker_item(snapshot: SnapshotId) -> bytes:
    return _MARKER.to_bytes(1, "big") + snapshot.to_bytes(8, "big")


def is_marker(item: bytes) -> bool:
    return len(item) == 9 and item[0] == _MARKER


def marker_id(item: bytes) -> SnapshotId:
    return SnapshotId(int.from_bytes(item[1:], "big", signed=True))


# A message on a channel that reorders is `[name, body, number, stamp]`, the last two of nine bytes each; a count is
# `[snapshot, sent]`, which begins like a message but has a number where that has its name.

_WHOLE: Final = 0xCF
_TAIL: Final = 18


def stamped_item(item: bytes, number: int, stamp: int) -> bytes:
    return b"\x94%b\xcf%b\xcf%b" % (item[1:], number.to_bytes(8, "big"), stamp.to_bytes(8, "big"))


def is_stamped(item: bytes) -> bool:
    return item[:1] == b"\x94" and len(item) > _TAIL + 2 and item[-_TAIL] == item[-9] == _WHOLE


def unstamped(item: bytes) -> bytes:
    """The message as it was sent."""
    return b"\x92" + item[1:-_TAIL]


def number_of(item: bytes) -> int:
    return int.from_bytes(item[-17:-9], "big")


def stamp_of(item: bytes) -> int:
    return int.from_bytes(item[-8:], "big")


def count_item(snapshot: SnapshotId, sent: int) -> bytes:
    return b"\x92\xcf%b\xcf%b" % (snapshot.to_bytes(8, "big"), sent.to_bytes(8, "big"))


def count_of(item: bytes) -> tuple[SnapshotId, int] | None:
    if len(item) != 19 or item[:2] != b"\x92\xcf" or item[10] != _WHOLE:
        return None
    return SnapshotId(int.from_bytes(item[2:10], "big")), int.from_bytes(item[11:], "big")


def item_to_json(item: bytes) -> Json:
    """A message as a journal shows it, or PeerFault; needs no registered class. `message_from_json` gives it back.

    A plain value that JSON does not have (bytes, keys that are not text), or that would look like a message, goes with
    its bytes: nothing is lost.
    """
    match decode_plain(item):
        case [str(name), body, *_]:
            value = to_json(body)
        case _:
            raise _no_message(item)
    if not name:
        if _is_json(body) and not (isinstance(body, dict) and "type" in body):
            return value
        return {"type": "", "value": value, "msgpack": base64.b64encode(_encode(body)).decode()}
    return {"type": name, **value} if isinstance(value, dict) else {"type": name, "value": value}


def message_from_json(value: Json) -> Any:
    """The message that a journal shows, as it was sent."""
    if not isinstance(value, dict) or "type" not in value:
        return value
    name = value["type"]
    if name == "" and isinstance(value.get("msgpack"), str):
        return decode_plain(base64.b64decode(str(value["msgpack"])))
    kind = _classes.get(str(name))
    if kind is None:
        raise Misuse(
            f"The journal has messages {name!r}, which no class that is loaded here declares.",
            next="Name the topology that the journal is of: it brings its messages.",
        )
    body: Any = {key: part for key, part in value.items() if key != "type"}
    try:
        return msgspec.convert(body, kind, str_keys=True)
    except msgspec.ValidationError as error:
        if body.keys() == {"value"}:
            return msgspec.convert(body["value"], kind, str_keys=True)
        raise Misuse(f"A message {name} of the journal does not fit its class: {error}.") from None


def _is_json(value: Any) -> bool:
    """Whether JSON has the value as it is."""
    kind = value.__class__
    if kind is dict:
        return all(key.__class__ is str and _is_json(part) for key, part in value.items())
    if kind is list:
        return all(map(_is_json, value))
    return kind in (str, int, bool, type(None)) or (kind is float and math.isfinite(value))


def _unknown(item: bytes) -> PeerFault:
    try:
        name = decode_plain(item)[0]
    except (PeerFault, TypeError, LookupError):
        return _no_message(item)
    return PeerFault(
        f"A message {name!r} came, which this process does not know.",
        next="Mark its class with @message, in a module that sender and receiver import.",
    )


def _no_message(item: bytes) -> PeerFault:
    return PeerFault(f"{len(item)} bytes that are not a message came: they begin with {item[:8].hex()}.")


# ── states and other plain values ───────────────────────────────────────────────────────────────────────────────────


def decode_plain(data: bytes | memoryview) -> Any:
    """Lists, dicts, numbers, text and bytes; what has come from a class is a dict by now."""
    try:
        return _plain(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PeerFault(f"{len(data)} bytes are not a value: {error}.") from None


def encode_state(state: Any, whose: str) -> bytes:
    """The bytes of a node's state, or Misuse that names the field which does not fit."""
    try:
        return _encode(state)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        _refuse(state, f"the state of {whose}", error)


def decode_state(value: Any, kind: Any, whose: str) -> Any:
    """A plain value as the declared type, or Misuse that names the field."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, TypeError) as error:
        raise Misuse(
            f"The stored state of {whose} does not fit its class: {error}.",
            untouched="The snapshot is untouched.",
            next="Start it with the class that took the snapshot, or give the class a restore() that converts.",
        ) from None


def to_json(value: Any) -> Json:
    """A plain value as JSON: bytes as base64, keys as text, numbers that JSON does not have as text."""
    return _finite(msgspec.to_builtins(value, str_keys=True))


def _finite(value: Any) -> Json:
    kind = value.__class__
    if kind is float:
        return value if math.isfinite(value) else repr(value)
    if kind is dict:
        return {str(key): _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if kind is list or kind is tuple else value


# ── which field does not fit ────────────────────────────────────────────────────────────────────────────────────────


def _refuse(value: Any, what: str, error: Exception) -> NoReturn:
    path, culprit = _find(value, "", 0)
    where = f"field {path.lstrip('.')!r} of {what}" if path else what
    reason = str(error).rstrip(".") if culprit is None else f"{_short(culprit)} is of type {type(culprit).__name__}"
    raise Misuse(
        f"{where[0].upper()}{where[1:]} cannot be written: {reason}.",
        untouched="Nothing was sent or stored.",
        next="Use numbers of up to 64 bits, text, bytes, enums, dataclasses, and lists or dicts of these.",
    ) from None


def _find(value: Any, path: str, depth: int) -> tuple[str, Any]:
    """The path to the smallest part that cannot be encoded, and that part."""
    if depth > 100:
        return path, None
    parts: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        parts = [(f"{path}.{key}", each) for key, each in value.items()]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = [(f"{path}[{i}]", each) for i, each in enumerate(value)]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [(f"{path}.{f.name}", getattr(value, f.name)) for f in dataclasses.fields(value)]
    for name, part in parts:
        try:
            _encode(part)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return _find(part, name, depth + 1)
    return path, value


def _short(value: Any) -> str:
    return shortened(repr(value), 60)

"""The relations of a snapshot of live processes: `state.<node>` and `in_flight.messages`.

A node's state is one MessagePack value. An object is a row with a column for each of its fields; a list of objects is
a row for each; anything else is one column, `value`. Numbers, texts and lists keep their types where all rows agree,
and are JSON texts where they do not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa

from strobe.look.relations import Relation
from strobe.store.locate import Located
from strobe.store.manifest import Manifest

__all__ = ["live_relations"]

_STATE: Final = "state.msgpack"
_MESSAGES: Final = "messages.msgpack"


def live_relations(found: Located, manifest: Manifest) -> Iterator[Relation]:
    for uid in manifest.nodes:
        yield Relation(
            "state",
            uid,
            f"the state of node {uid}",
            lambda uid=uid: _state(found, manifest, uid),  # type: ignore[misc]
            stage=uid,
        )
    yield Relation(
        "in_flight",
        "messages",
        "messages that had been sent and not received",
        lambda: _messages(found, manifest),
    )


def _state(found: Located, manifest: Manifest, uid: Any) -> pa.Table:
    value = _decode(found.store.read(manifest.nodes[uid].files[_STATE], f"The state of {uid}"))
    return rows_from([value] if not _is_rows(value) else value)


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def rows_from(values: list[Any]) -> pa.Table:
    """A column for each field that any of the values has, in the order in which they come."""
    names = list(dict.fromkeys(str(k) for v in values if isinstance(v, dict) for k in v))
    if not all(isinstance(v, dict) for v in values):
        return pa.table({"value": _column(values)})
    if not names:
        return pa.table({"value": _column(values)})
    rows = [{str(k): each for k, each in v.items()} for v in values]
    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def _column(values: list[Any]) -> pa.Array:
    plain = [_plain(v) for v in values]
    try:
        if any(isinstance(v, dict) for v in plain):
            raise pa.ArrowInvalid("objects have fields of their own")
        return pa.array(plain)
    except (pa.ArrowException, OverflowError, TypeError):
        return pa.array([None if v is None else json.dumps(v, ensure_ascii=False) for v in plain], pa.string())


def _plain(value: Any) -> Any:
    """What JSON has; bytes as hexadecimal digits."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return bytes(value).hex() if isinstance(value, bytes | bytearray) else str(value)


def _decode(data: bytes) -> Any:
    return msgspec.msgpack.decode(data, strict=False)


def _messages(found: Located, manifest: Manifest) -> pa.Table:
    rows: list[tuple[str, str, str, int, str]] = []
    for channel in manifest.graph.channels:
        record = manifest.channels.get(channel.id)
        if record is None or _MESSAGES not in record.content:
            continue
        data = found.store.read(record.content[_MESSAGES], f"The content of channel {channel.id}")
        received = manifest.nodes[channel.target].inputs.get(channel.id, 0)
        for number, item in enumerate(_decode(data), 1):
            position, payload = _payload(item, received + number)
            text = json.dumps(_plain(payload), ensure_ascii=False)
            rows.append((channel.id, channel.source, channel.target, position, text))
    names = ("channel", "source", "target", "position", "message")
    kinds = (pa.string(), pa.string(), pa.string(), pa.int64(), pa.string())
    return pa.table([pa.array([r[i] for r in rows], kind) for i, kind in enumerate(kinds)], names=list(names))


def _payload(item: Any, position: int) -> tuple[int, Any]:
    """A message is its class's name and its content; on channels that reorder, also its number and a stamp."""
    if not isinstance(item, list) or len(item) not in (2, 4):
        raise ValueError("a message is not what live processes send")
    name, body = item[0], _plain(item[1])
    if len(item) == 4 and item[2].__class__ is int:
        position = min(item[2], (1 << 63) - 1)
    if not name:
        return position, body
    return position, {"type": name, **body} if isinstance(body, dict) else {"type": name, "value": body}

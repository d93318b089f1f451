"""The fast path for sending: as little work as possible for each message.

`Life.send` says what may be sent where, and counts it. These two do the same for the normal case, with everything
looked up in advance. Anything unexpected they leave to `Life.send`, which raises the error. `bench/live_messages.py`
measures them. Not for a life with a journal, which writes down each message, and not for channels that reorder, where
each message gets a number and a stamp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from strobe.hosts.live.api.codec import encoding
from strobe.hosts.live.api.process import Process
from strobe.hosts.live.node.ends import Output

__all__ = ["send_quickly"]

Send = Callable[[str, Any], None]


def send_quickly(process: Process, outputs: Mapping[str, Output], send: Send) -> None:
    """From now on the process sends this way, unless its class has a `send` of its own."""
    given, kind = vars(process), type(process)
    if given.get("send") == send and outputs:
        given["send"] = _quick_send(outputs, send)
        if kind.send_all is Process.send_all:
            given["send_all"] = _quick_send_all(outputs, send)


def _quick_send(outputs: Mapping[str, Output], send: Send) -> Send:
    names, encode = encoding()
    ends = {to: (out.add, out.link) for to, out in outputs.items()}
    limit = min(out.max_item for out in outputs.values())

    def quick_send(to: str, message: Any) -> None:
        try:
            add, link = ends[to]
            item = encode((names[message.__class__], message))
        except Exception:
            send(to, message)  # it raises the error
            return
        if len(item) > limit:
            send(to, message)
            return
        add(item)
        if not link.scheduled:
            link.schedule()

    return quick_send


def _quick_send_all(outputs: Mapping[str, Output], send: Send) -> Callable[[str, Iterable[Any]], None]:
    names, encode = encoding()
    limit = min(out.max_item for out in outputs.values())

    def quick_send_all(to: str, messages: Iterable[Any]) -> None:
        given = messages if messages.__class__ is list else list(messages)
        try:
            out = outputs[to]
            items = [encode((names[message.__class__], message)) for message in given]
        except Exception:
            items = []
        if not items or max(map(len, items)) > limit:
            for message in given:
                send(to, message)
            return
        out.add_all(items)
        if not out.link.scheduled:
            out.link.schedule()

    return quick_send_all

"""The journal on disk: what happened, one line per event. This module alone owns the format.

Theory
------
A journal is JSON lines in UTF-8. Line 1 is the header, the last line is `["end", events, sha256 of all bytes before
this line]`, and each line between them is one event: an array whose first element is its kind. Lines are written in
canonical form, so the same run gives the same bytes.

A reader either gets exactly what was written or a `Damaged` that names the file, the line and the fault. The end line
makes a cut-off file visible, its hash makes a changed byte visible, and each line is checked for its shape and for
nodes and channels that the header's graph does not have. Whether the *run* was right is for the checkers to say: a
message that was received twice is not damage.

Only the order of one node's lines means anything. Journals of live systems are merged from one file per node.
"""

from __future__ import annotations

import errno
import gc
import hashlib
import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, BinaryIO, Final

from strobe.model.cut import Json
from strobe.model.errors import Damaged, Misuse, StrobeError
from strobe.model.events import Event
from strobe.model.graph import Graph, graph_from_json, graph_to_json
from strobe.model.ids import NodeId
from strobe.model.text import shortened
from strobe.verify.lines import Fault, encode, fields_of, readers

__all__ = ["FORMAT", "Header", "Journal", "JournalWriter", "read_journal"]

FORMAT: Final = 1
ORDERS: Final = ("fifo", "reorder")
_LARGEST: Final = 2 << 30  # bytes; all of it is in memory at once, several times over


@dataclass(frozen=True)
class Header:
    """Whose journal it is. `order` is what the channels promise: "fifo" or "reorder"."""

    host: str
    workload: str
    params: Mapping[str, Json]
    protocol: str
    order: str
    seed: int | None
    graph: Graph
    initial: Mapping[NodeId, Json]

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise Misuse(f"Channels cannot be {self.order!r}.", next="The orders are: fifo, reorder.")
        unknown = [node for node in self.initial if node not in self.graph.nodes]
        missing = [node for node in self.graph.nodes if node not in self.initial]
        if unknown or missing:
            raise Misuse(
                "A journal's header has an initial state for each node of its graph: "
                + "; ".join(
                    f"{fault} for {', '.join(map(repr, nodes))}"
                    for fault, nodes in (("none", missing), ("one too many", unknown))
                    if nodes
                )
                + "."
            )


@dataclass(frozen=True)
class Journal:
    """A run in memory."""

    header: Header
    events: list[Event]


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class JournalWriter:
    """Writes a journal as the run goes. As a context manager it ends the journal only if the block did not raise:
    a run that broke off must not pass for a whole one."""

    def __init__(self, target: str | os.PathLike[str] | BinaryIO, header: Header) -> None:
        self.events = 0
        self._closed = False
        self._hash = hashlib.sha256()
        self._owned = isinstance(target, str | os.PathLike)
        if isinstance(target, str | os.PathLike):
            try:
                self._file: BinaryIO = open(target, "wb", buffering=1 << 18)  # noqa: SIM115 (closed by close)
            except OSError as error:
                raise Misuse(
                    f"Cannot write a journal to {os.fspath(target)!r}: {error.strerror}.",
                    next="Name a file in a directory that exists and that you may write to.",
                ) from error
        else:
            self._file = target
        self._line(
            {
                "strobe-journal": FORMAT,
                "host": header.host,
                "workload": {"name": header.workload, "params": dict(header.params)},
                "protocol": header.protocol,
                "order": header.order,
                "seed": header.seed,
                "graph": graph_to_json(header.graph),
                "initial": dict(header.initial),
            }
        )

    def write(self, event: Event) -> None:
        self._line(fields_of(event))
        self.events += 1

    def close(self) -> None:
        """Ends the journal; calling it again does nothing. A stream that was handed in stays open."""
        if not self._closed:
            self._line(["end", self.events, self._hash.hexdigest()])
            self._release()

    def abandon(self) -> None:
        """Closes the file without the end line, so that readers see that the run broke off."""
        if not self._closed:
            self._release()

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _release(self) -> None:
        self._closed = True
        if self._owned:
            self._file.close()
        else:
            self._file.flush()

    def _line(self, value: Json) -> None:
        try:
            line = encode(value).encode() + b"\n"
        except (TypeError, ValueError) as error:
            raise Misuse(
                f"This does not fit into a journal: {value!r} ({error}).",
                untouched="The journal holds what came before it.",
                next="States, actions and payloads are JSON values: no NaN, no objects, text as keys.",
            ) from error
        self._hash.update(line)
        self._file.write(line)


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_journal(source: str | os.PathLike[str] | BinaryIO) -> tuple[Header, list[Event]]:
    if isinstance(source, str | os.PathLike):
        name = os.fspath(source)
        try:
            with open(source, "rb", opener=_open) as file:
                data = _all(file)
        except OSError as error:
            raise Misuse(
                f"Cannot read a journal from {name!r}: {error.strerror}.",
                next="Name a file that was written with --journal.",
            ) from error
    else:
        name = str(getattr(source, "name", "the stream"))
        data = source.read()
    # A million small objects are made and none is garbage: the collector's scans would take a third of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _read(name, data)
    finally:
        if collecting:
            gc.enable()


def _open(path: str, flags: int) -> int:
    """A regular file, or a pipe that somebody writes to: one without a writer is empty, and not waited for."""
    handle = os.open(path, flags | os.O_NONBLOCK)
    kind = os.fstat(handle).st_mode
    if not stat.S_ISREG(kind) and not stat.S_ISFIFO(kind):
        os.close(handle)
        raise OSError(errno.EINVAL, os.strerror(errno.EISDIR) if stat.S_ISDIR(kind) else "it is no file", path)
    os.set_blocking(handle, True)
    return handle


def _all(file: BinaryIO) -> bytes:
    data = b"" if os.fstat(file.fileno()).st_size > _LARGEST else file.read(_LARGEST + 1)
    if len(data) > _LARGEST or os.fstat(file.fileno()).st_size > _LARGEST:
        raise OSError(errno.EFBIG, f"it has more than {_LARGEST >> 30} GiB")
    return data


def _damaged(name: str, line: int, fault: str) -> Damaged:
    return Damaged(
        f"Journal {name}, line {line}: {fault}.",
        untouched="The file was not changed.",
        next="Write a new one by running again with the same seed, or take another copy.",
    )


def _read(name: str, data: bytes) -> tuple[Header, list[Event]]:
    if not data:
        raise _damaged(name, 1, "the file is empty, where a header should be")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _damaged(name, data.count(b"\n", 0, error.start) + 1, "these bytes are not UTF-8 text") from None
    lines = text.split("\n")
    decode = json.JSONDecoder(parse_constant=_refuse).raw_decode
    header = _located(name, 1, lambda: _header(_value(decode, lines[0])))
    if lines[-1]:
        raise _damaged(name, len(lines), "the file breaks off in the middle of this line")
    del lines[-1]
    if len(lines) == 1:
        raise _damaged(name, 2, "the file breaks off after its header: there is no end line")
    kinds = readers(header.graph)
    events: list[Event] = []
    append = events.append
    try:
        for line in lines[1:-1]:
            fields, length = decode(line)
            if length != len(line):
                raise Fault(f"there is more after the end of the event: {_short(line[length:])}")
            append(kinds[fields[0]](fields))
    except (Fault, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise _damaged(name, len(events) + 2, _explain(error, lines[len(events) + 1], header.graph, kinds)) from None
    _check_end(name, data, lines, decode, kinds)
    return header, events


def _check_end(
    name: str,
    data: bytes,
    lines: list[str],
    decode: Callable[[str], tuple[Json, int]],
    kinds: Mapping[str, object],
) -> None:
    number, last = len(lines), lines[-1]
    end = _located(name, number, lambda: _value(decode, last))
    if not isinstance(end, list) or end[:1] != ["end"]:
        # A whole last line that is not an end line: either the file was cut between lines, or this line is broken.
        fault = (
            "the file breaks off after this line: there is no end line"
            if isinstance(end, list) and end and isinstance(end[0], str) and end[0] in kinds
            else f"this is not an end line: {_short(last)}"
        )
        raise _damaged(name, number, fault)
    if len(end) != 3 or end[1].__class__ is not int or not isinstance(end[2], str):
        raise _damaged(name, number, f"an end line is a count and a hash, not {_short(last)}")
    if end[1] != number - 2:
        raise _damaged(name, number, f"the end line counts {end[1]} events, but there are {number - 2}")
    body = memoryview(data)[: len(data) - len(last.encode()) - 1]
    if hashlib.sha256(body).hexdigest() != end[2]:
        raise _damaged(name, number, "the hash does not fit: something in the lines above was changed")


def _refuse(constant: str) -> Json:
    raise Fault(f"{constant} is not a JSON value")


def _short(text: str) -> str:
    return repr(shortened(text, 60))


def _value(decode: Callable[[str], tuple[Json, int]], line: str) -> Json:
    try:
        value, length = decode(line)
    except (ValueError, RecursionError):  # a number of many thousand digits is a plain ValueError
        raise Fault(f"this is not JSON: {_short(line)}") from None
    if length != len(line):
        raise Fault(f"there is more after the end of the value: {_short(line[length:])}")
    return value


def _located(name: str, line: int, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Fault as fault:
        raise _damaged(name, line, str(fault)) from None


def _explain(error: Exception, line: str, graph: Graph, kinds: Mapping[str, object]) -> str:
    """Says in words why `line` could not be read; called once, for the first bad line, so it may look again."""
    if isinstance(error, Fault):
        return str(error)
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return f"this is not JSON: {_short(line)}"
    if not isinstance(fields, list) or not fields:
        return f"an event is an array that starts with its kind, not {_short(line)}"
    kind = fields[0]
    if kind == "end":
        return "the end line is not the last line"
    if not isinstance(kind, str) or kind not in kinds:
        return f"there is no kind of event {kind!r}"
    if isinstance(error, KeyError):
        # The only lookups are those of names: of a node, which stands second, and of a channel.
        nodes = set[object](graph.nodes)
        what = "channel" if kind in ("lost", "duplicated") or fields[1] in nodes else "node"
        return f"there is no {what} {error.args[0]!r} in the graph"
    return f"{kind!r} does not have these fields: {_short(line)}"


def _header(value: Json) -> Header:
    if not isinstance(value, dict) or "strobe-journal" not in value:
        raise Fault("this is not the header of a journal (it has no 'strobe-journal')")
    if value["strobe-journal"] != FORMAT:
        raise Fault(f"the journal has format {value['strobe-journal']!r}, and this Strobe reads format {FORMAT}")
    try:
        workload, seed = value["workload"], value["seed"]
        if not isinstance(value["initial"], dict):
            raise Fault("the header's initial states are not given by node")
        header = Header(
            value["host"],
            workload["name"],
            workload["params"],
            value["protocol"],
            value["order"],
            seed,
            graph_from_json(value["graph"]),
            value["initial"],
        )
    except KeyError as error:
        raise Fault(f"the header has no {error}") from None
    except (TypeError, IndexError, AttributeError):
        raise Fault("the header's workload, graph or initial states do not have the shape they should") from None
    except StrobeError as error:
        raise Fault(f"the header makes no sense: {error.what.rstrip('.')}") from None
    texts = (header.host, header.workload, header.protocol)
    if not all(isinstance(text, str) for text in texts) or not isinstance(header.params, dict):
        raise Fault("the header's host, workload or protocol is not a name")
    if seed is not None and seed.__class__ is not int:
        raise Fault(f"the header's seed is {seed!r}, not a number")
    return header

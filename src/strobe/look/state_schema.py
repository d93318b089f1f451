"""What a stage's checkpoint says of its state: operators, their stores, and the schemas of keys and values.

`state/<operator>/_metadata` names the operator and its stores; for transformWithState also its variables. The schema of
a store stands in its partition 0 (`_metadata/schema`), or in a file that the metadata name (`_stateSchema/…`), which
lists the store's column families. Only the part of such a path below the checkpoint counts.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from strobe.look.types import Field, Unsupported, schema_from
from strobe.model.errors import StrobeError
from strobe.model.strict_json import parse

__all__ = ["Family", "Operator", "Store", "Variable", "operators_of", "schema_texts"]

_SCHEMA_FILE: Final = re.compile(r"(?:.*/)?(state/\d+/_stateSchema/[^/]+/[^/]+)")
_METADATA: Final = re.compile(r"state/(\d{1,9})/_metadata/(?:metadata|v2/(\d{1,18}))")
_MOST_CHUNKS: Final = 1024
_MOST_FAMILIES: Final = 10_000
_ENCODERS: Final = {
    "NoPrefixKeyStateEncoderSpec": "whole",
    "PrefixKeyScanStateEncoderSpec": "prefix",
    "RangeKeyScanStateEncoderSpec": "range",
    "TimestampAsPrefixKeyStateEncoderSpec": "timestamp first",
    "TimestampAsPostfixKeyStateEncoderSpec": "timestamp last",
}


@dataclass(frozen=True)
class Family:
    """A column family, or the only one of a store: `key` and `value`, and how keys are encoded. `first` are the places
    in the key that are written ahead of the others."""

    name: str
    key: tuple[Field, ...]
    value: tuple[Field, ...]
    encoding: str = "whole"
    first: tuple[int, ...] = ()


@dataclass(frozen=True)
class Store:
    name: str
    families: tuple[Family, ...]


@dataclass(frozen=True)
class Variable:
    """A state variable of a transformWithState: its name, its kind (`value`, `list`, `map`, `timers`), and whether its
    values expire."""

    name: str
    kind: str
    expires: bool


@dataclass(frozen=True)
class Operator:
    """An operator of a stage. `problem` says why its stores cannot be described; if their format is not known here,
    Spark may still read them."""

    number: int
    name: str
    stores: tuple[Store, ...] = ()
    variables: tuple[Variable, ...] = ()
    problem: str = ""
    for_spark: bool = False


def operators_of(paths: Iterable[str], read: Callable[[str], bytes]) -> tuple[Operator, ...]:
    """The operators of a stage, by what its files at `paths` say. Each is described on its own."""
    newest: dict[int, tuple[int, str]] = {}
    for path in paths:
        if match := _METADATA.fullmatch(path):
            number, version = int(match[1]), int(match[2] or -1)
            newest[number] = max(newest.get(number, (-2, "")), (version, path))
    return tuple(_operator(number, path, set(paths), read) for number, (_, path) in sorted(newest.items()))


def _operator(number: int, path: str, paths: set[str], read: Callable[[str], bytes]) -> Operator:
    name = ""
    try:
        head, _, body = read(path).partition(b"\n")
        if head not in (b"v1", b"v2"):
            raise Unsupported(f"metadata of the format {head.decode('utf-8', 'replace')!r:.40}")
        value = parse(body)
        name = str(value["operatorInfo"]["operatorName"])[:100]
        variables = _variables(value.get("operatorPropertiesJson"))
        stores = tuple(_store(number, each, paths, read) for each in value["stateStoreInfo"])
        return Operator(number, name, stores, variables)
    except StrobeError as error:
        return Operator(number, name, problem=error.what)
    except Unsupported as error:
        return Operator(number, name, problem=f"it has {error!s:.200}", for_spark=True)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, struct.error) as error:
        return Operator(number, name, problem=f"{error!s:.200}" or type(error).__name__)


def _store(number: int, value: Mapping[str, Any], paths: set[str], read: Callable[[str], bytes]) -> Store:
    name = str(value["storeName"])
    listed = value.get("stateSchemaFilePaths")
    if listed:
        files = [match[1] for text in listed if (match := _SCHEMA_FILE.fullmatch(str(text)))]
        if not files or files[-1] not in paths:
            raise ValueError("the file with its schema is missing")
        return Store(name, _schema(read(files[-1])))
    place = f"state/{number}/0/" + ("" if name == "default" else f"{name}/")
    path = f"{place}_metadata/schema"
    if path not in paths:
        raise ValueError("the file with its schema is missing")
    families = _schema(read(path))
    prefix = int(value.get("numColsPrefixKey") or 0)
    if prefix and len(families) == 1 and families[0].encoding == "whole":
        family = families[0]
        families = (Family(family.name, family.key, family.value, "prefix", tuple(range(prefix))),)
    return Store(name, families)


def _variables(text: object) -> tuple[Variable, ...]:
    if not isinstance(text, str) or not text:
        return ()
    found = parse(text.encode()).get("stateVariables", [])
    if isinstance(found, str):
        found = parse(found.encode())
    kinds = {"ValueState": "value", "ListState": "list", "MapState": "map", "TimerState": "timers"}
    return tuple(
        Variable(str(v["stateName"]), kinds.get(str(v["stateVariableType"]), "?"), bool(v.get("ttlEnabled")))
        for v in found
    )


# ── the schema file ─────────────────────────────────────────────────────────────────────────────────────────────────


class _Reader:
    """Java's DataInputStream over bytes."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return int(value)

    def text(self) -> str:
        size = self.number(">H")
        if self.at + size > len(self.data):
            raise ValueError("its schema is cut off")
        self.at += size
        return self.data[self.at - size : self.at].decode("utf-8", "surrogatepass")

    def chunks(self) -> str:
        count = self.number(">i")
        if not 0 <= count <= _MOST_CHUNKS:
            raise ValueError("its schema is too long")
        return "".join(self.text() for _ in range(count))


@dataclass(frozen=True)
class _Texts:
    """A column family as the file has it: its name, and JSON texts. A file of one family has no `spec`."""

    name: str
    key: str
    value: str
    spec: str | None = None
    of_map: str = ""  # the schema of a map's keys, which the key has as well


def schema_texts(data: bytes) -> Iterator[str]:
    """Every schema that Spark would make of the file, as JSON."""
    for family in _texts(data):
        yield from (text for text in (family.key, family.value, family.of_map) if text)


def _schema(data: bytes) -> tuple[Family, ...]:
    return tuple(_family(texts) for texts in _texts(data))


def _texts(data: bytes) -> Iterator[_Texts]:
    reader = _Reader(data)
    version = reader.text()
    if version == "v1":
        yield _Texts("default", reader.text(), reader.text())
    elif version == "v2":
        yield _Texts("default", reader.chunks(), reader.chunks())
    elif version != "v3":
        raise Unsupported(f"a schema of the format {version!r:.40}")
    else:
        count = reader.number(">i")
        if not 0 <= count <= _MOST_FAMILIES:
            raise ValueError("its schema is too long")
        for _ in range(count):
            name = reader.text()
            reader.number(">h")
            key = reader.chunks()
            reader.number(">h")
            yield _Texts(name, key, reader.chunks(), reader.chunks(), reader.chunks())


def _family(texts: _Texts) -> Family:
    name, key, value = texts.name, schema_from(texts.key), schema_from(texts.value)
    if texts.spec is None:
        return Family(name, key, value)
    spec = parse(texts.spec.encode())
    encoding = _ENCODERS.get(str(spec.get("keyStateEncoderType")))
    if encoding is None:
        raise Unsupported(f"keys encoded as {spec.get('keyStateEncoderType')!r:.80}")
    first: tuple[int, ...] = ()
    if encoding == "prefix":
        first = tuple(range(int(spec["numColsPrefixKey"])))
    elif encoding == "range":
        first = tuple(int(place) for place in spec["orderingOrdinals"])
    if any(not 0 <= place < len(key) for place in first):
        raise ValueError("its key has no such columns")
    return Family(name, key, value, encoding, first)

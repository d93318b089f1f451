"""JSON from outside, as strictly as it can be read.

Python's own reader takes more than JSON: numbers that are none, numbers of any size, halves of characters, the same
name twice, nesting until the stack ends. Each of these passes the reader and breaks whoever uses the value later, far
from the file. Here they are refused where the bytes are read, with a `NotJson` that says what and where.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, TypeAlias

__all__ = ["DEEPEST", "NotJson", "check_value", "parse"]

Json: TypeAlias = Any

DEEPEST: Final = 100  # levels; what walks a value later uses a few stack frames for each
_LONGEST_NUMBER: Final = 1000  # digits; Python itself stops at 4300, and only when it writes
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


class NotJson(ValueError):
    """What is wrong, as half a sentence."""


def parse(data: bytes, *, halves: bool = False) -> Json:
    """The value. Every number and every text in it can be written again. With `halves` a text may have half of a
    surrogate pair, as names of files and messages of errors do."""
    if not data:
        raise NotJson("the file is empty")
    try:
        text = data.decode()
        value = json.loads(text, object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_float, parse_int=_int)
    except UnicodeDecodeError as error:
        raise NotJson(f"byte {error.start} is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise NotJson(f"byte {len(error.doc[: error.pos].encode())} is not JSON ({error.msg})") from None
    except RecursionError:
        raise NotJson("it is nested too deeply") from None
    if not halves and _ESCAPED_SURROGATE.search(data):
        _check_texts(value)
    return value


def check_value(value: Json, where: str) -> Json:
    """`value` itself, if it is nested `DEEPEST` levels at most: for parts whose shape nobody else checks."""
    level = _items([value])
    for _ in range(DEEPEST):
        if not level:
            return value
        level = [item for each in level for item in _items(each)]
    raise NotJson(f"{where}: it is nested more than {DEEPEST} levels deep")


def _items(value: Json) -> list[Json]:
    if isinstance(value, dict):
        return [item for item in value.values() if isinstance(item, dict | list)]
    return [item for item in value if isinstance(item, dict | list)] if isinstance(value, list) else []


def _pairs(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        raise NotJson(f"{next(n for n in names if names.count(n) > 1):.80}: the field is there twice")
    return value


def _constant(constant: str) -> Json:
    raise NotJson(f"{constant} is not a JSON value")


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise NotJson(f"{text:.40} is too large a number")
    return number


def _int(text: str) -> int:
    if len(text) > _LONGEST_NUMBER:
        raise NotJson(f"{text:.40}… is too large a number")
    return int(text)


def _check_texts(value: Json) -> None:
    """A half of a surrogate pair can be written as an escape, and then by nobody."""
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, dict):
            todo += (*each.keys(), *each.values())
        elif isinstance(each, list):
            todo += each
        elif isinstance(each, str) and _SURROGATE.search(each):
            raise NotJson(f"{each!r:.80} holds half a character")

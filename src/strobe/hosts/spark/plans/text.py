"""An expression of a Spark plan as text that is the same whenever the expression means the same.

Left out is what changes from run to run or without changing a value: ids, names of aliases, seeds, the session's time
zone and its ANSI mode. Operands whose order does not matter are sorted. Columns are resolved first: an environment says
for each id what the column was made of, so it makes no difference in how many steps a value was computed.

What a Python function does is not known: it is written as `python(…)`, or `python⟦…⟧` if it takes and returns whole
rows, and its name is noted.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

from strobe.hosts.spark.plans.tree import Node, is_tree

__all__ = ["Environment", "Writer", "column", "expression_id", "opaque", "quoted", "references", "resolve"]

Environment: TypeAlias = Mapping[int, Node]

_LONGEST = 4000
_TRANSPARENT = frozenset({
    "Alias", "KnownNullable", "KnownNotNull", "KnownNotContainsNull", "KnownFloatingPointNormalized",
    "NormalizeNaNAndZero", "PromotePrecision", "PreciseTimestampConversion", "TempResolvedColumn",
})  # fmt: skip
_INFIX = {
    "Add": "+", "Subtract": "-", "Multiply": "*", "Divide": "/", "Remainder": "%", "And": "and", "Or": "or",
    "EqualTo": "=", "EqualNullSafe": "<=>", "LessThan": "<", "LessThanOrEqual": "<=",
}  # fmt: skip
_COMMUTATIVE = frozenset({
    "Add", "Multiply", "And", "Or", "EqualTo", "EqualNullSafe", "BitwiseAnd", "BitwiseOr", "BitwiseXor",
})  # fmt: skip
_CHAINS = frozenset({"Add", "Multiply", "And", "Or"})
_MIRRORED = {"GreaterThan": "LessThan", "GreaterThanOrEqual": "LessThanOrEqual"}
_PYTHON = frozenset({"PythonUDF", "PythonUDAF", "PythonUDTF", "ScalaUDF", "ScalaUDAF", "ScalaAggregator"})
_PARSERS = frozenset({"JsonToStructs", "CsvToStructs", "XmlToStructs", "AvroDataToCatalyst", "ProtobufDataToCatalyst"})
_SEEDED = frozenset({"Rand", "Randn", "Uniform", "RandStr"})  # the last argument is a seed, drawn again by PySpark
_SUBQUERIES = frozenset({"ScalarSubquery", "Exists", "ListQuery", "InSubquery", "LateralSubquery"})
_IGNORED = frozenset({
    "class", "num-children", "exprId", "qualifier", "metadata", "nullable", "timeZoneId", "zoneId", "evalMode",
    "evalContext", "ansiEnabled", "failOnError", "resultId", "mutableAggBufferOffset", "inputAggBufferOffset",
    "randomSeed", "hideSeed", "legacySizeOfNull", "branches", "explicitMetadata", "nonInheritableMetadataKeys",
})  # fmt: skip
_NUMBERS = frozenset({"byte", "short", "integer", "long", "float", "double"})
_INTERVAL = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([a-z]+?)s?(?=$|[\s\d+-])")
_MICROS = {
    "microsecond": 1, "millisecond": 1000, "second": 10**6, "minute": 60 * 10**6, "hour": 3600 * 10**6,
}  # fmt: skip
_UNITS = {**{unit: (0, 0, n) for unit, n in _MICROS.items()},
          "day": (0, 1, 0), "week": (0, 7, 0), "month": (1, 0, 0), "year": (12, 0, 0)}  # fmt: skip
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def expression_id(node: Node) -> int:
    """-1 for an expression that has none."""
    identity = node.fields.get("exprId")
    return int(identity["id"]) if isinstance(identity, dict) and "id" in identity else -1


def column(text: str) -> Node:
    """A column that is not made of others."""
    return Node("Column", {"text": text}, ())


def opaque(like: Node, function: str) -> Node:
    """What a `function` returns under the name of a column that it was given, as far as one can tell `like` that."""
    return Node("Opaque", {"function": function}, (like,))


def references(expression: Node) -> set[int]:
    found: set[int] = set()
    for node in expression.walk():
        if node.kind == "AttributeReference":
            found.add(expression_id(node))
        found |= {i for argument in _hidden(node) for i in references(argument)}
    return found


def resolve(expression: Node, env: Environment) -> Node:
    """The expression with every column replaced by what it was made of."""
    if expression.kind == "AttributeReference":
        made_of = env.get(expression_id(expression))
        return made_of or column(quoted(str(expression.fields["name"])))
    before = (*expression.children, *_hidden(expression))
    after = tuple(resolve(child, env) for child in before)
    unchanged = all(new is old for new, old in zip(after, before, strict=True))
    return expression if unchanged else replace(expression, children=after)


def _hidden(node: Node) -> tuple[Node, ...]:
    """Expressions that are arguments of one that has no children."""
    if node.children:
        return ()
    return tuple(tree for name in node.fields for tree in node.trees(name))


@dataclass
class Writer:
    """`zone` is the session's, in which Spark writes literal times. `functions`: names of Python functions that were
    met; what they do cannot be written down."""

    zone: str = "UTC"
    functions: set[str] = field(default_factory=set)
    _known: dict[int, tuple[Node, str]] = field(default_factory=dict)  # by identity: origins are shared

    def text(self, node: Node) -> str:
        """The text of a resolved expression."""
        return self._text(node, {})

    def _text(self, node: Node, bound: Mapping[int, str]) -> str:
        if not bound and id(node) in self._known:
            return self._known[id(node)][1]
        text = _short(self._write(node, bound))
        if not bound:
            self._known[id(node)] = (node, text)
        return text

    def _write(self, node: Node, bound: Mapping[int, str]) -> str:
        kind = _MIRRORED.get(node.kind, node.kind)
        if kind in _TRANSPARENT:
            return self._text(node.children[0], bound)
        special = self._special(node, bound)
        if special is not None:
            return special
        if kind == "LambdaFunction":
            bound = {**bound, **_lambda_names(node, len(bound))}
        children = _operands(node) if kind in _CHAINS else node.children if kind == node.kind else node.children[::-1]
        parts = [self._text(child, bound) for child in children]
        if kind in _COMMUTATIVE:
            parts.sort()
        if kind in _INFIX:
            return f"({f' {_INFIX[kind]} '.join(parts)})"
        if kind == "In":
            parts[1:] = sorted(set(parts[1:]))
        return f"{kind.lower()}({', '.join([*parts, *_arguments(node)])})"

    def _special(self, node: Node, bound: Mapping[int, str]) -> str | None:
        kind, fields = node.kind, node.fields
        write: Callable[[Node], str] = lambda child: self._text(child, bound)  # noqa: E731
        if kind == "Column":
            return str(fields["text"])
        if kind == "Opaque":
            self.functions.add(str(fields["function"]))
            return f"python⟦{write(node.children[0])}⟧"
        if kind == "Side":
            return f"{fields['text']} {write(node.children[0])}"
        if kind == "Literal":
            return _literal(fields, self.zone)
        if kind == "NamedLambdaVariable":
            return bound.get(expression_id(node), quoted(str(fields["name"])))
        if kind == "Cast":
            return _cast(node, write(node.children[0]))
        if kind == "GetStructField":
            struct, name = _bare(node.children[0]), fields.get("name")
            if struct.kind == "CreateNamedStruct" and self._window(struct) is None:
                return write(struct.children[2 * int(fields["ordinal"]) + 1])
            return f"{write(node.children[0])}.{quoted(name) if isinstance(name, str) else fields.get('ordinal')}"
        if kind == "AggregateExpression":
            distinct = "distinct " if fields.get("isDistinct") else ""
            where = f" where {write(node.children[1])}" if len(node.children) > 1 else ""
            return f"{distinct}{write(node.children[0])}{where}"
        if kind == "CreateNamedStruct":
            return self._window(node)
        if kind in _PYTHON:
            self.functions.add(str(fields.get("name") or fields.get("udfName") or "a function"))
            return f"python({', '.join(map(write, node.children))})"
        if kind in _PARSERS:  # which other fields are parsed makes no difference to the one that is used
            return f"{kind.lower()}({', '.join(map(write, node.children))})"
        if kind in _SUBQUERIES:
            self.functions.add("a subquery")
            return "subquery()"
        if kind in _SEEDED:
            return f"{kind.lower()}({', '.join(map(write, node.children[:-1]))})"
        return None

    def _window(self, struct: Node) -> str | None:
        """A window in the form that Spark gives it: its start is counted off by remainders, or it is a session."""
        if [_text_of(c) for c in struct.children[::2]] != ["start", "end"]:
            return None
        start, end = (_bare(c) for c in struct.children[1::2])
        if not any(n.kind == "PreciseTimestampConversion" for n in struct.walk()):
            return None
        if end.kind == "Cast" and end.children[0].kind == "TimestampAddInterval":
            gap = end.children[0].children[1]
            return f"session_window({self._text(start, {})}, {self._text(gap, {})})"
        step = next((n for n in start.walk() if n.kind == "Remainder"), None)
        length = _text_of(end.children[1]) if end.kind == "Add" else None
        if step is None or length is None or _bare(step.children[0]).kind != "Subtract":
            return None
        time, offset = _bare(step.children[0]).children
        slide, begin = _text_of(step.children[1]), _text_of(offset)
        if slide is None or begin is None:
            return None
        parts = [self._text(time, {}), _duration(length)]
        if slide != length or begin != "0":
            parts.append(f"every {_duration(slide)}")
        if begin != "0":
            parts.append(f"from {_duration(begin)}")
        return f"window({', '.join(parts)})"


def _bare(node: Node) -> Node:
    while node.kind in _TRANSPARENT:
        node = node.children[0]
    return node


def _text_of(node: Node) -> str | None:
    value = node.fields.get("value") if node.kind == "Literal" else None
    return None if value is None else str(value)


def _lambda_names(node: Node, depth: int) -> dict[int, str]:
    arguments = [c for c in node.children[1:] if c.kind == "NamedLambdaVariable"]
    return {expression_id(a): f"x{depth + i}" for i, a in enumerate(arguments)}


def _operands(node: Node) -> tuple[Node, ...]:
    """A chain of one operator is one list, however it is bracketed."""
    found: list[Node] = []
    for child in map(_bare, node.children):
        found += _operands(child) if child.kind == node.kind else (child,)
    return tuple(found)


def _arguments(node: Node) -> list[str]:
    """What the expression was made with besides its children."""
    found, unclaimed = [], set(range(len(node.children)))
    for name, value in node.fields.items():
        if name in _IGNORED or value is None or value in ([], {}) or is_tree(value):
            continue
        if isinstance(value, int) and not isinstance(value, bool) and value in unclaimed:
            unclaimed.discard(value)
        elif isinstance(value, list) and all(isinstance(v, int) and v in unclaimed for v in value):
            unclaimed -= set(value)
        else:
            found.append(_plain(value))
    return found


def _literal(fields: Mapping[str, Any], zone: str) -> str:
    value, kind = fields.get("value"), fields.get("dataType")
    if value is None:
        return "null"
    if kind in _NUMBERS or (isinstance(kind, str) and kind.startswith("decimal")) or kind == "boolean":
        return str(value)
    if isinstance(kind, str) and "interval" in kind:
        return f"{value} months" if "year" in kind or "month" in kind else _interval(str(value))
    if kind == "timestamp":
        return _in_utc(str(value), zone)
    return "'" + str(value).replace("'", "''") + "'"


def _in_utc(text: str, zone: str) -> str:
    try:
        return f"'{datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC).isoformat()}'"
    except (ValueError, LookupError, OSError):  # a zone or a time that Python does not know
        return f"'{text}'"


def _cast(node: Node, inner: str) -> str:
    child, to = _bare(node.children[0]), node.fields.get("dataType")
    if child.kind == "Literal" and child.fields.get("dataType") in _NUMBERS and to in _NUMBERS:
        return inner
    if to == "interval" and child.kind == "Literal" and child.fields.get("dataType") == "string":
        return _interval(str(child.fields.get("value")))
    return f"cast({inner} as {_plain(to)})"


def _interval(text: str) -> str:
    """'10 second', '10 seconds' and 'INTERVAL 0 minutes 10 seconds' are one length of time."""
    if text.lstrip("-").isdigit():
        return _duration(text)
    total, rest = [0, 0, 0], text.lower().removeprefix("interval ").strip()
    for number, unit in _INTERVAL.findall(rest):
        if unit not in _UNITS or ("." in number and unit not in _MICROS):
            return f"'{text}'"
        for i, n in enumerate(_UNITS[unit]):
            total[i] += round(float(number) * n)
    if _INTERVAL.sub("", rest).strip():
        return f"'{text}'"
    months, days, micros = total
    parts = [*([f"{months} months"] if months else []), *([f"{days} days"] if days else [])]
    return " ".join([*parts, *([_duration(str(micros))] if micros or not parts else [])])


def _duration(micros: str) -> str:
    """A length of time in its largest whole unit."""
    n = int(micros)
    for unit, size in reversed(_MICROS.items()):
        if n % size == 0 and n:
            return f"{n // size} {unit}{'' if n // size == 1 else 's'}"
    return f"{n} microseconds"


def _plain(value: object) -> str:
    if isinstance(value, dict) and isinstance(value.get("object"), str):
        return str(value["object"]).rstrip("$").rpartition(".")[2].rpartition("$")[2]
    if isinstance(value, str):
        return value
    return json.dumps(_without_noise(value), sort_keys=True, separators=(",", ":"))


def _without_noise(value: object) -> object:
    if isinstance(value, dict):
        return {k: _without_noise(v) for k, v in value.items() if k not in ("nullable", "metadata", "exprId")}
    return [_without_noise(v) for v in value] if isinstance(value, list) else value


def _short(text: str) -> str:
    """Limit the text of a column: it is repeated in every column made of it, and could double with every step."""
    if len(text) <= _LONGEST:
        return text
    return f"{text[:100]}…{hashlib.sha256(text.encode()).hexdigest()[:16]}"

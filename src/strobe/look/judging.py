"""Invariants, asked of a cut."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import duckdb
import pyarrow as pa

from strobe.look.cut import Cut
from strobe.look.engine import tables_in
from strobe.model.cut import Json
from strobe.model.errors import Misuse, StrobeError
from strobe.model.invariants import Invariant, Outcome, Verdict
from strobe.model.suggest import did_you_mean
from strobe.store.manifest import NOTHING
from strobe.store.times import utc_text

__all__ = ["channels_asked_for", "check_live_names", "check_names", "invariants_in", "judge"]

_SHOWN: Final = 10  # rows of a violation that are kept
_WIDE: Final = 500  # characters of a value that are kept
_TITLE: Final = re.compile(r"^\s*--\s*invariant\s*:\s*(\S.*?)\s*$", re.MULTILINE)
_OF_STAGES: Final = ("state", "in_flight", "channel", "sink")
_OF_FILES: Final = ("read_", "parquet_", "sniff_", "glob")  # functions that read outside of the snapshot


def judge(cut: Cut, invariant: Invariant) -> Verdict:
    """The verdict on the invariant in this cut. Never raises because of the invariant or the snapshot."""
    began = time.monotonic()
    rows: list[Mapping[str, Json]] = []
    count, why = 0, ""
    young = {uid for uid, node in cut.manifest.nodes.items() if node.batch == NOTHING}
    try:
        found = cut.sql(invariant.sql) if invariant.sql is not None else _called(invariant, cut)
        outcome, count, rows = _outcome(found)
    except StrobeError as error:
        outcome, why = Outcome.FAILED, error.what
    except Exception as error:  # the user's function
        outcome, why = Outcome.FAILED, f"{type(error).__name__}: {error}"
    asked = [uid for uid in sorted(young) if re.search(rf"\b{re.escape(uid)}\b", f"{invariant.sql or ''} {why}")]
    if outcome is Outcome.FAILED and asked:
        outcome, why = Outcome.SKIPPED, f"stage {asked[0]!r} has not run yet"
    return Verdict(
        invariant.name,
        cut.manifest.snapshot,
        outcome,
        at=utc_text(time.time()),
        seconds=round(time.monotonic() - began, 3),
        count=count,
        rows=tuple(rows),
        why=why[:2000],
    )


def _called(invariant: Invariant, cut: Cut) -> Any:
    assert invariant.function is not None
    return invariant.function(cut)


def _outcome(found: Any) -> tuple[Outcome, int, list[Mapping[str, Json]]]:
    """The outcome of what a function returned: rows in any form, a bool, or None."""
    if found is None or isinstance(found, bool) or type(found).__name__ == "bool_":  # numpy's own
        held = found is None or bool(found)
        return (Outcome.HOLDS if held else Outcome.VIOLATED), int(not held), []
    table = _table(found)
    first: list[Mapping[str, Json]] = [
        {name: _plain(value) for name, value in row.items()} for row in table.slice(0, _SHOWN).to_pylist()
    ]
    return (Outcome.VIOLATED if table.num_rows else Outcome.HOLDS), table.num_rows, first


def _table(found: Any) -> pa.Table:
    if isinstance(found, pa.Table):
        return found
    if hasattr(found, "to_arrow"):  # Polars
        return found.to_arrow()
    if type(found).__module__.partition(".")[0] == "pandas":
        return pa.Table.from_pandas(found, preserve_index=False)
    if isinstance(found, Iterable) and not isinstance(found, str | bytes | Mapping):
        rows = [row if isinstance(row, Mapping) else {"row": str(row)} for row in found]
        return pa.Table.from_pylist(rows) if rows else pa.table({})
    raise Misuse(
        f"The function returned {type(found).__name__}.",
        next="Return the rows that must not be there, or True if it holds.",
    )


def _plain(value: Any) -> Json:
    """A value of a row as JSON, cut to a length that fits into a file of verdicts."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 2**63:
        return value
    if isinstance(value, float) and value == value and abs(value) != float("inf"):
        return value
    if isinstance(value, Mapping | list):
        with contextlib.suppress(TypeError, ValueError):
            return json.dumps(value, default=str)[:_WIDE]
    return str(value)[:_WIDE]


# ── before anything is asked ────────────────────────────────────────────────────────────────────────────────────────


def check_names(
    invariants: Iterable[Invariant], stages: Iterable[str], channels: Collection[str] | None = None
) -> None:
    """Misuse for a query that is not SQL, or that names a stage that is not in the graph, or a relation that no
    snapshot will have. `channels` are the stages that others read, if that is known."""
    known = {stage.lower(): stage for stage in stages}
    read = None if channels is None else {stage.lower() for stage in channels}
    with duckdb.connect(":memory:") as db:
        for invariant in invariants:
            if invariant.sql is None:
                continue
            for schema, name in _relations(db, invariant):
                if schema in ("in_flight", "channel") and name in known and read is not None and name not in read:
                    raise Misuse(
                        f"Invariant {invariant.name!r} asks for {schema}.{name}, but no stage reads {known[name]!r}: "
                        "it has no channel.",
                        untouched="Nothing was started.",
                        next=f"Channels have: {', '.join(sorted(channels or ())) or 'none'}.",
                    )
                if not schema:
                    raise Misuse(
                        f"Invariant {invariant.name!r} asks for {name!r}, which no snapshot has.",
                        untouched="Nothing was started.",
                        next=f"{did_you_mean(name, list(known))}Say which relation of a stage: state.STAGE, "
                        "in_flight.STAGE, channel.STAGE, sink.STAGE; or one of meta.",
                    )
                if schema in _OF_STAGES and name.partition("__")[0] not in known and name not in known:
                    raise Misuse(
                        f"Invariant {invariant.name!r} asks for {schema}.{name}, but there is no stage {name!r}.",
                        untouched="Nothing was started.",
                        next=f"{did_you_mean(name, list(known))}The stages are: {', '.join(known.values())}.",
                    )


def channels_asked_for(invariants: Iterable[Invariant]) -> set[str] | None:
    """The stages whose channels these invariants look at, in lower case. None: that is unknown, it may be any of
    them."""
    found: set[str] = set()
    with duckdb.connect(":memory:") as db:
        for invariant in invariants:
            if invariant.sql is None:
                return None
            named = _relations(db, invariant)
            if ("meta", "channels") in named:
                return None
            found |= {name for schema, name in named if schema in ("in_flight", "channel")}
    return found


def check_live_names(invariants: Iterable[Invariant], nodes: Iterable[str]) -> None:
    """The same for a system of live processes, whose messages in flight are one relation."""
    known = {f"state.{node}".lower(): f"state.{node}" for node in nodes} | {"in_flight.messages": "in_flight.messages"}
    with duckdb.connect(":memory:") as db:
        for invariant in invariants:
            for schema, name in () if invariant.sql is None else _relations(db, invariant):
                if schema in _OF_STAGES and f"{schema}.{name}" not in known:
                    raise Misuse(
                        f"Invariant {invariant.name!r} asks for {schema}.{name}, which this system does not have.",
                        untouched="Nothing was started.",
                        next=f"{did_you_mean(f'{schema}.{name}', list(known))}There are: {', '.join(known.values())}.",
                    )


def _relations(db: duckdb.DuckDBPyConnection, invariant: Invariant) -> set[tuple[str, str]]:
    assert invariant.sql is not None
    try:
        statements = db.extract_statements(invariant.sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise Misuse(
                f"The query of invariant {invariant.name!r} is not one select.",
                untouched="Nothing was started.",
                next="Select the rows that must not exist.",
            )
        ((text,),) = db.execute("select json_serialize_sql(?)", [invariant.sql]).fetchall()
    except duckdb.Error as error:
        raise Misuse(
            f"The query of invariant {invariant.name!r} is not SQL: {str(error).strip().partition(chr(10))[0]}",
            untouched="Nothing was started.",
        ) from error
    tree = json.loads(text)
    own, functions = _names_within(tree)
    outside = sorted(name for name in functions if name.startswith(_OF_FILES))
    if outside:
        raise Misuse(
            f"The query of invariant {invariant.name!r} reads files with {outside[0]}: it can ask the snapshot, and "
            "nothing else.",
            untouched="Nothing was started.",
            next="What is outside of the snapshot can be read by a function: @pipeline.invariant(…).",
        )
    named = {(schema.lower(), table.lower()) for _, schema, table in tables_in(tree)}
    return {(schema, table) for schema, table in named if schema or table not in own}


def _names_within(tree: Any) -> tuple[set[str], set[str]]:
    """The names that the query gives to queries of its own (`with x as …`), and functions that it uses as tables."""
    found: set[str] = set()
    functions: set[str] = set()
    todo: list[Any] = [tree]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            entries = value.get("cte_map", {}).get("map", []) if isinstance(value.get("cte_map"), dict) else []
            found |= {str(entry["key"]).lower() for entry in entries if isinstance(entry, dict) and "key" in entry}
            function = value.get("function")
            if value.get("type") == "TABLE_FUNCTION" and isinstance(function, dict):
                functions.add(str(function.get("function_name")).lower())
            todo += value.values()
        elif isinstance(value, list):
            todo += value
    return found, functions


def invariants_in(text: str, where: str) -> tuple[Invariant, ...]:
    """From a file of queries. A line `-- invariant: NAME` begins one that has a name; without any such line, each query
    is one."""
    titles = list(_TITLE.finditer(text))
    if titles:
        ends = [title.start() for title in titles[1:]] + [len(text)]
        named = [(title[1], text[title.end() : end]) for title, end in zip(titles, ends, strict=True)]
        if _statements(text[: titles[0].start()], where):
            raise Misuse(f"{where} begins with a query without a name.", next="Put `-- invariant: NAME` above it.")
    else:
        named = [(f"query {number}", query) for number, query in enumerate(_statements(text, where), 1)]
    found: dict[str, Invariant] = {}
    for name, part in named:
        queries = _statements(part, where)
        if len(queries) != 1:
            raise Misuse(
                f"{where}: invariant {name!r} has {len(queries)} queries.", next="Give each invariant one query."
            )
        if name in found:
            raise Misuse(f"{where} has two invariants {name!r}.", next="Give one of them another name.")
        found[name] = Invariant(name, queries[0])
    if not found:
        raise Misuse(f"There is no query in {where}.", next="Write queries that give the rows which must not exist.")
    return tuple(found.values())


def _statements(text: str, where: str) -> list[str]:
    with duckdb.connect(":memory:") as db:
        try:
            return [str(statement.query) for statement in db.extract_statements(text)]
        except duckdb.Error as error:
            raise Misuse(f"{where} is not SQL: {str(error).strip().partition(chr(10))[0]}") from error

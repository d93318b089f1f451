"""The SQL engine: DuckDB, in memory, which can read what it is given and nothing else.

It opens no file and no address, loads no extension, takes no configuration, and runs only statements that read. What a
query may take is bounded: its memory, and, if the caller says so, its time. A relation is handed over when a query
names it; an engine keeps it for the next one.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import pyarrow as pa

from strobe.look.named_columns import named_columns
from strobe.look.relations import Lost, Relation
from strobe.model.errors import Failed, Misuse
from strobe.model.suggest import did_you_mean

__all__ = ["Engine", "Limits", "tables_in"]

_SCHEMAS: Final = ("state", "in_flight", "channel", "sink", "meta")
_READS: Final = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
_OWN: Final = "memory"


@dataclass(frozen=True)
class Limits:
    """What a query may take. `seconds` None: as long as it takes."""

    memory: str = "1GB"
    seconds: float | None = None


_Key = tuple[str, str, str]  # catalog, schema, name, in lower case


@dataclass(frozen=True)
class _Shown:
    """A relation that the database knows: under which name, and with which of its columns. None: with all."""

    name: str
    columns: frozenset[str] | None


class Engine:
    def __init__(self, limits: Limits, missing: Callable[[str], str] = lambda name: "") -> None:
        """`missing`: a sentence about a relation that is not there, by its name."""
        self._limits, self._missing = limits, missing
        config: dict[str, str | bool | int | float | list[str]] = {
            "enable_external_access": "false",
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
            "allow_community_extensions": "false",
            "memory_limit": limits.memory,
            "threads": str(max(1, min(8, os.cpu_count() or 1))),
        }
        try:
            self._db = duckdb.connect(":memory:", config=config)
        except duckdb.Error as error:
            raise Misuse(
                f"A query cannot have {limits.memory!r} of memory: {_first_line(error)}.",
                next="Give an amount such as 500MB or 4GB.",
            ) from error
        self._relations: dict[_Key, Relation] = {}
        self._shown: dict[_Key, _Shown] = {}
        self._locked = False

    def add(self, relations: Iterable[Relation], catalog: str = "") -> None:
        """Relations of a snapshot; those of a second one are named `catalog.state.…`."""
        if catalog:
            if catalog.lower() in (*_SCHEMAS, "main", "temp", "system", _OWN) or not catalog.isidentifier():
                raise Misuse(
                    f"A snapshot cannot be called {catalog!r} in a query.", next="Choose another word, such as before."
                )
            self._db.execute(f"attach ':memory:' as {_quoted(catalog)}")
        for schema in _SCHEMAS:
            self._db.execute(f"create schema {_quoted(catalog or _OWN)}.{_quoted(schema)}")
        for each in relations:
            key = (catalog.lower(), each.schema.lower(), each.name.lower())
            self._relations[key] = each

    def sql(self, query: str) -> pa.Table:
        """The rows of the last statement."""
        if not self._locked:
            self._db.execute("set python_enable_replacements=false")
            self._db.execute("set lock_configuration=true")
            self._locked = True
        statements = self._statements(query)
        try:
            self._provide(statements)
            return self._run(statements)
        except (duckdb.Error, RuntimeError) as error:
            if not self._widen(error):
                raise self._said(error) from error
        try:
            return self._run(statements)
        except (duckdb.Error, RuntimeError) as error:
            raise self._said(error) from error

    def _run(self, statements: list[Any]) -> pa.Table:
        timer = threading.Timer(self._limits.seconds, self._db.interrupt) if self._limits.seconds else None
        try:
            if timer is not None:
                timer.start()
            for statement in statements[:-1]:
                self._db.execute(statement).fetchall()
            return self._answer(statements[-1])
        finally:
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        self._db.close()

    def _answer(self, statement: Any) -> pa.Table:
        if statement.type == duckdb.StatementType.SELECT:
            answer = self._db.sql(str(statement.query))
            if answer is not None:
                return answer.to_arrow_table()
        rows = self._db.execute(statement).fetchall()
        names = [str(column[0]) for column in self._db.description or ()]
        return pa.table([[row[i] for row in rows] for i in range(len(names))], names=names)

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _statements(self, query: str) -> list[Any]:
        try:
            statements = list(self._db.extract_statements(query))
        except duckdb.Error as error:
            raise Misuse(f"The query is not SQL: {_message(error)}", untouched="Nothing was read.") from error
        if not statements:
            raise Misuse("The query is empty.", next="Try: select * from meta.stages")
        for statement in statements:
            if statement.type not in _READS:
                kind = str(statement.type).rpartition(".")[2].lower()
                raise Misuse(
                    f"A snapshot can only be read, and this is a statement of the kind {kind}.",
                    untouched="Nothing was run.",
                    next="Use select, with, from, describe, summarize or explain.",
                )
        return statements

    def _provide(self, statements: list[Any]) -> None:
        for statement in statements:
            named, columns = self._named(str(statement.query))
            for key in self._relations if named is None else named:
                if named is None and key[2] not in str(statement.query).lower():
                    continue
                try:
                    self._show(key, columns)
                except Lost:
                    if named is not None:
                        raise

    def _named(self, query: str) -> tuple[set[_Key] | None, frozenset[str] | None]:
        """The relations that a statement names, None if DuckDB does not say, as of an `explain`; and the columns, None
        if it may need all of them."""
        ((text,),) = self._db.execute("select json_serialize_sql(?)", [query]).fetchall()
        tree = json.loads(text)
        if tree.get("error"):
            return None, None
        found = set()
        for catalog, schema, table in tables_in(tree):
            key = (catalog.lower() if catalog.lower() != _OWN else "", schema.lower(), table.lower())
            if key in self._relations:
                found.add(key)
        return found, named_columns(tree)

    def _show(self, key: _Key, columns: frozenset[str] | None) -> None:
        relation, shown = self._relations[key], self._shown.get(key)
        wanted = relation.needed(columns)
        if shown is not None:
            if shown.columns is None or (wanted is not None and wanted <= shown.columns):
                return
            wanted = None if wanted is None else wanted | shown.columns
        elif wanted is not None:
            wanted = wanted or relation.smallest()
        name = shown.name if shown is not None else f"rows_{len(self._shown) + 1}"
        rows = relation.load(wanted)
        place = f"{_quoted(key[0] or _OWN)}.{_quoted(relation.schema)}.{_quoted(relation.name)}"
        try:
            self._db.register(name, rows)
            self._db.execute(f"create or replace view {place} as select * from temp.main.{name}")  # noqa: S608
        except (duckdb.Error, RuntimeError) as error:
            raise Failed(
                f"{relation.full_name} is not a table that can be asked: {_message(error)}",
                untouched="Nothing was changed.",
                next="Other relations of the snapshot can be asked all the same.",
            ) from error
        self._shown[key] = _Shown(name, wanted)

    def _widen(self, error: Exception) -> bool:
        """After a name was not found: give the database the columns that were left out. Returns whether there were
        any."""
        narrow = [key for key, shown in self._shown.items() if shown.columns is not None]
        if not isinstance(error, duckdb.BinderException | duckdb.CatalogException) or not narrow:
            return False
        for key in narrow:
            self._show(key, None)
        return True

    def _said(self, error: Exception) -> Exception:
        text = _message(error)
        if isinstance(error, duckdb.InterruptException):
            return Failed(
                f"The query was stopped after {self._limits.seconds:g} s, its limit."
                if self._limits.seconds
                else "The query was stopped.",
                untouched="Nothing was changed.",
                next="Ask for less, or give it more time with --timeout.",
            )
        if isinstance(error, duckdb.OutOfMemoryException):
            return Failed(
                f"The query needs more memory than the {self._limits.memory} that it may use.",
                untouched="Nothing was changed.",
                next="Ask for less, or give it more with --memory.",
            )
        if isinstance(error, duckdb.PermissionException):
            return Misuse(f"A query reads the snapshot and nothing else: {text}", untouched="Nothing was read.")
        if isinstance(error, duckdb.CatalogException) and "able with name" in text:
            wanted = text.partition("with name ")[2].partition(" ")[0]
            names = [f"{c}.{r.full_name}" if c else r.full_name for (c, _, _), r in self._relations.items()]
            close = [name for name in names if name.rpartition(".")[2].lower() == wanted.lower()]
            guess = f"Did you mean {' or '.join(close)}? " if close else did_you_mean(wanted, names)
            guess = self._missing(wanted) or guess
            return Misuse(
                f"There is no relation {wanted!r} in the snapshot.",
                untouched="Nothing was read.",
                next=f"{guess}Its relations: {', '.join(names)}.",
            )
        if isinstance(error, duckdb.InvalidInputException | duckdb.ParserException | duckdb.ProgrammingError):
            return Misuse(f"The query cannot be run: {text}", untouched="Nothing was changed.")
        return Failed(f"The query failed: {text}", untouched="Nothing was changed.")


def tables_in(tree: Any) -> Iterator[tuple[str, str, str]]:
    todo: list[Any] = [tree]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            if value.get("type") == "BASE_TABLE":
                yield tuple(str(value.get(f"{n}_name") or "") for n in ("catalog", "schema", "table"))  # type: ignore[misc]
            elif value.get("type") == "SHOW_REF" and isinstance(value.get("table_name"), str):
                parts = [p.strip('"') for p in value["table_name"].split(".")]
                if len(parts) in (2, 3):
                    yield ("", *parts) if len(parts) == 2 else tuple(parts)
            todo += value.values()
        elif isinstance(value, list):
            todo += value


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _message(error: Exception) -> str:
    """DuckDB's message without the name of its class, on one line."""
    text = str(error).partition("\n\nLINE")[0].strip()
    kind, colon, rest = text.partition(" Error: ")
    text = rest if colon and len(kind) < 30 else text
    return " ".join(text.split()).rstrip(".") + "."


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")

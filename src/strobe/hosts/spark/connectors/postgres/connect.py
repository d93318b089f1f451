"""Connections to Postgres, what its tables look like, and what its errors mean.

A DSN holds a password. It is handed to psycopg and to nobody else: what people see is `address`, and every message of
the server or of libpq passes through `said`, which takes the password out should it be in there.

Errors fall into few kinds. *Unreachable*: no answer, or one that may differ in a moment (no connection, a shutdown, a
lock that is held too long): worth another attempt. *In the row*: a type or a constraint; the row is named. Everything
else has to be fixed by a person.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from strobe.hosts.spark.connectors.base import Unreachable
from strobe.model.errors import Failed, Misuse, StrobeError

try:
    import psycopg
    from psycopg import sql
    from psycopg.conninfo import conninfo_to_dict
except ImportError as error:
    raise Misuse(
        f"Postgres needs the package psycopg ({error}).", next="Install it: pip install 'strobe[postgres]'."
    ) from error

__all__ = ["Column", "Dsn", "Table", "in_the_row", "is_passing", "row_problem", "table_of"]

CONNECT: Final = 10  # seconds
LOCK: Final = 10  # seconds that somebody else's lock is waited for, before it counts as an obstacle
_PASSING: Final = ("08", "57", "40", "55P03", "53300", "25P03", "58")  # SQLSTATEs, or how they begin


@dataclass(frozen=True)
class Dsn:
    """A connection string or URL, as libpq takes it. Its text form has no secret in it."""

    text: str
    _found: Mapping[str, str] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        try:
            found = conninfo_to_dict(self.text)
        except (psycopg.Error, AttributeError, TypeError) as error:
            # What libpq says may quote the string, so it is not passed on.
            raise Misuse(
                "The connection string of a Postgres sink or source cannot be read.",
                untouched="Nothing was tried.",
                next="It is postgresql://USER@HOST:PORT/DATABASE, or 'host=… port=… dbname=… user=…'.",
            ) from (None if isinstance(error, psycopg.Error) else error)
        object.__setattr__(self, "_found", {key: str(value) for key, value in found.items() if value is not None})

    def __repr__(self) -> str:
        return f"Dsn({self.address})"

    __str__ = __repr__

    @property
    def address(self) -> str:
        """host:port/database, for people."""
        host = self._found.get("host") or self._found.get("hostaddr") or os.environ.get("PGHOST") or "localhost"
        port = self._found.get("port") or os.environ.get("PGPORT") or "5432"
        user = self._found.get("user") or os.environ.get("PGUSER") or ""
        return f"{host}:{port}/{self._found.get('dbname') or os.environ.get('PGDATABASE') or user}"

    @property
    def user(self) -> str:
        return self._found.get("user") or os.environ.get("PGUSER") or ""

    def said(self, error: BaseException | str) -> str:
        """What the server said, in one line and without secrets."""
        text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
        for secret in (self._found.get("password"), self._found.get("sslpassword"), os.environ.get("PGPASSWORD")):
            if secret:
                text = text.replace(secret, "…")
        return text

    def connect(self, application: str = "strobe", *, autocommit: bool = True) -> psycopg.Connection[Any]:
        """Raises psycopg's errors, for code on executors, which has no user to talk to."""
        given = {"connect_timeout": CONNECT, "application_name": application, "keepalives_idle": 30}
        if "connect_timeout" in self._found:
            del given["connect_timeout"]
        connection: psycopg.Connection[Any] = psycopg.connect(self.text, autocommit=autocommit, **given)  # type: ignore[arg-type]
        connection.prepare_threshold = None
        return connection

    @contextmanager
    def session(self, what: str, application: str = "strobe") -> Iterator[psycopg.Connection[Any]]:
        """A connection, each statement a transaction of its own; errors are Strobe's. `what` is who needs it."""
        try:
            with self.connect(application) as connection:
                connection.execute(f"SET lock_timeout = '{LOCK}s'".encode())
                yield connection
        except psycopg.Error as error:
            raise self.trouble(what, error) from None

    def trouble(self, what: str, error: psycopg.Error) -> StrobeError:
        """The error for people. psycopg's own is not chained: its traceback may show the connection string."""
        said, state = self.said(error), error.sqlstate or ""
        if state.startswith("28") or "password authentication failed" in said or "no password supplied" in said:
            return Misuse(
                f"{what}: Postgres at {self.address} refuses user {self.user!r}: wrong credentials.",
                untouched="Nothing was written.",
                next="Fix user or password in the connection string, or in PGUSER, PGPASSWORD or ~/.pgpass.",
            )
        if state.startswith("3D") or (f'"{self.address.rpartition("/")[2]}" does not exist' in said):
            return Misuse(f"{what}: {said}", untouched="Nothing was written.", next="Fix the connection string.")
        if is_passing(error):
            return Unreachable(
                f"{what}: Postgres at {self.address} does not answer: {said}",
                untouched="Nothing is lost.",
                next="Check that the server runs and can be reached from here.",
            )
        if state == "42501":
            return Misuse(
                f"{what}: user {self.user!r} may not: {said}",
                untouched="Nothing was written.",
                next="It needs INSERT (and UPDATE, SELECT with a key) on the table, and CREATE on its schema.",
            )
        return Failed(f"{what}: {said}", untouched="Nothing of it is visible.")


def is_passing(error: psycopg.Error) -> bool:
    """Whether another attempt may succeed without anybody doing anything."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.sqlstate.startswith(_PASSING)


def in_the_row(error: psycopg.Error) -> bool:
    """Whether a row's value is at fault: its type or a constraint."""
    return (error.sqlstate or "")[:2] in ("22", "23")


def row_problem(error: psycopg.Error) -> str:
    """What is wrong with the row: constraint, key values, place."""
    diag = error.diag
    parts = [diag.message_primary or str(error).partition("\n")[0]]
    if diag.message_detail:
        parts.append(diag.message_detail.rstrip("."))
    where = (diag.context or "").partition("\n")[0]
    if where.startswith("COPY") and not diag.message_detail:
        parts.append(where)
    if diag.constraint_name and diag.constraint_name not in parts[0]:
        parts.append(f"constraint {diag.constraint_name}")
    return "; ".join(parts)


# ── tables ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Column:
    """A column of a table: `type` as Postgres calls it inside ("int4", "_text" for an array), `shown` for people."""

    name: str
    type: str
    shown: str
    scale: int | None  # of a numeric with one
    filled: bool  # may be left out of an INSERT
    generated: bool  # must be left out of an INSERT
    enum: bool = False


@dataclass(frozen=True)
class Table:
    schema: str
    name: str
    columns: tuple[Column, ...]
    unique: tuple[frozenset[str], ...]  # what ON CONFLICT may name

    @property
    def quoted(self) -> str:
        return quoted(self.schema, self.name)

    def column(self, name: str) -> Column | None:
        return next((c for c in self.columns if c.name == name), None)


def quoted(*names: str) -> str:
    return sql.Identifier(*names).as_string(None)


def split_name(name: str) -> tuple[str | None, str]:
    """`schema.table` or `table`; names are taken as they are, without folding."""
    schema, dot, table = name.rpartition(".")
    if not table or (dot and not schema):
        raise Misuse(f"{name!r} is not the name of a table.", next="It is TABLE or SCHEMA.TABLE.")
    return schema or None, table


_FIND: Final = """
select n.nspname, c.oid, c.relkind from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relname = %(table)s and c.relkind in ('r', 'p', 'v', 'm', 'f')
  and case when %(schema)s::text is null then pg_table_is_visible(c.oid) else n.nspname = %(schema)s end
"""
_COLUMNS: Final = """
select a.attname, b.typname, format_type(a.atttypid, a.atttypmod), b.typtype = 'e',
       case when b.typname = 'numeric' and m.mod > 0 then (((m.mod - 4) & 2047) # 1024) - 1024 end,
       a.atthasdef or a.attidentity <> '' or not (a.attnotnull or t.typnotnull),
       a.attgenerated <> '' or a.attidentity = 'a'
from pg_attribute a join pg_type t on t.oid = a.atttypid
join pg_type b on b.oid = coalesce(nullif(t.typbasetype, 0), t.oid),
lateral (select case when t.typbasetype <> 0 then t.typtypmod else a.atttypmod end as mod) m
where a.attrelid = %s and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
_UNIQUE: Final = """
select array_agg(a.attname::text) from pg_index i join pg_attribute a on a.attrelid = i.indrelid
  and a.attnum = any(i.indkey[0:i.indnkeyatts - 1])
where i.indrelid = %s and i.indisunique and i.indimmediate and i.indisvalid and i.indpred is null and i.indexprs is null
group by i.indexrelid
"""


def table_of(connection: psycopg.Connection[Any], name: str) -> Table | None:
    """The table or view of this name; None if there is none."""
    schema, table = split_name(name)
    found = connection.execute(_FIND, {"schema": schema, "table": table}).fetchone()
    if found is None:
        return None
    where, oid, _ = found
    columns = tuple(
        Column(
            name,
            type,
            shown,
            scale,
            bool(filled),
            bool(generated),
            bool(enum),
        )
        for name, type, shown, enum, scale, filled, generated in connection.execute(_COLUMNS, (oid,)).fetchall()
    )
    unique = tuple(frozenset(names) for (names,) in connection.execute(_UNIQUE, (oid,)).fetchall())
    return Table(where, table, columns, unique)

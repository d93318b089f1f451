"""How `strobe sql` shows rows: as a table, CSV, JSON or Markdown. Nothing in them can control the terminal."""

from __future__ import annotations

import base64
import csv
import datetime
import decimal
import io
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any, Final

import click
from rich.table import Table

from strobe.cli.output import Session, printable
from strobe.look.cut import Cut
from strobe.look.relations import Relation
from strobe.model.errors import Failed, Misuse
from strobe.model.text import shortened

__all__ = ["COMMANDS", "answer", "command", "write_parquet"]

_MOST_ROWS: Final = 1000  # of a table on a terminal
_LONGEST: Final = 200
COMMANDS: Final = {
    ".tables": "the relations of the snapshot",
    ".schema [NAME]": "the columns of one, or of all that are known",
    ".help": "this",
    ".quit": "leave",
}


def answer(table: Any, session: Session, shape: str) -> None:
    """Print the answer. `table` is an Arrow table."""
    names = list(table.column_names)
    if shape == "json":
        session.answer([dict(zip(names, row, strict=True)) for row in _rows(table, plain)])
    elif shape == "csv":
        _csv(names, table)
    elif shape == "markdown":
        _markdown(names, table)
    else:
        _table(names, table, session)


def command(cut: Cut, text: str, session: Session, shape: str) -> int:
    word, _, rest = text.partition(" ")
    if word == ".tables":
        _tables(cut, session, shape)
    elif word == ".schema":
        _schema(cut, rest.strip(), session, shape)
    elif word == ".help":
        for name, meaning in COMMANDS.items():
            session.say(f"{name:<16} {meaning}")
        session.say("anything else    a query in DuckDB's SQL, ended by ;")
    else:
        raise Misuse(f"There is no command {word!r}.", next=f"There are {', '.join(COMMANDS)}; or type SQL.")
    return 0


def _all(cut: Cut) -> list[tuple[str, Relation]]:
    named = [("", r) for r in cut.relations()]
    return named + [(f"{name}.", r) for name, other in cut.others.items() for r in other.relations()]


def _tables(cut: Cut, session: Session, shape: str) -> None:
    if shape == "json":
        session.answer([{"relation": f"{at}{r.full_name}", "about": r.about} for at, r in _all(cut)])
        return
    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column("relation", no_wrap=True)
    shown.add_column("what it is")
    for at, relation in _all(cut):
        shown.add_row(f"{at}{spelled(relation)}", relation.about)
    session.console.print(shown)


def spelled(relation: Relation) -> str:
    """The relation's name as a query writes it: in quotes if it is not a plain word."""
    name = relation.name if relation.name.isidentifier() else f'"{relation.name}"'
    return f"{relation.schema}.{name}"


def _schema(cut: Cut, name: str, session: Session, shape: str) -> None:
    wanted = name.replace('"', "").rstrip(";")
    found = [(at, r) for at, r in _all(cut) if not wanted or f"{at}{r.full_name}".lower() == wanted.lower()]
    if not found:
        cut.relation(wanted)  # its message says what there is
    columns = {}
    for at, relation in found:
        schema = relation.columns
        if schema is None and wanted:
            schema = relation.load().schema
        if schema is not None:
            columns[f"{at}{spelled(relation)}"] = [(f.name, str(f.type)) for f in schema]
    if shape == "json":
        session.answer({key: [{"column": c, "type": t} for c, t in each] for key, each in columns.items()})
        return
    for key, each in columns.items():
        session.say((key, "bold"))
        for column, kind in each:
            session.say(f"  {column:<24} {kind}")


# ── shapes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _rows(table: Any, how: Any) -> Any:
    for batch in table.to_batches():
        columns = [batch.column(i).to_pylist() for i in range(batch.num_columns)]
        for row in zip(*columns, strict=True):
            yield [how(value) for value in row]


def plain(value: Any) -> Any:
    """A value as JSON. Numbers that JSON does not have, and those that it would round, become strings; so do all
    decimals with digits behind the point, or a column would have both."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, decimal.Decimal):
        return int(value) if _is_whole(value) and abs(value) < 1 << 53 else str(value)
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _is_whole(value: decimal.Decimal) -> bool:
    """Whether it is a whole number by its type, not by its value: 2.00 is not."""
    exponent = value.as_tuple().exponent
    return isinstance(exponent, int) and exponent >= 0


def text_of(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, datetime.datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list | tuple):
        return json.dumps(plain(value), ensure_ascii=False)
    return str(value)


def _csv(names: list[str], table: Any) -> None:
    """CSV, the same for a terminal and a file: invisible characters are escaped, line breaks are within quotes. Null is
    nothing, and a text without a character is a pair of quotes; a line with nothing at all would be passed over."""

    def field(value: Any) -> str:
        if value is None:
            return "" if len(names) > 1 else '""'
        out = io.StringIO()
        csv.writer(out, lineterminator="").writerow([text_of(value)])
        return out.getvalue()

    rows = ([field(name) for name in names], *_rows(table, field))
    click.echo(printable("\n".join(map(",".join, rows))))


def _markdown(names: list[str], table: Any) -> None:
    def cell(value: Any) -> str:
        return printable(text_of(value)).replace("\\", "\\\\").replace("|", "\\|").replace("\n", "<br>")

    click.echo(f"| {' | '.join(cell(n) for n in names)} |\n|{'---|' * len(names)}")
    for row in _rows(table, cell):
        click.echo(f"| {' | '.join(row)} |")


def _table(names: list[str], table: Any, session: Session) -> None:
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name, kind in zip(names, table.schema.types, strict=True):
        number = str(kind).startswith(("int", "uint", "float", "double", "decimal"))
        shown.add_column(_short(name), justify="right" if number else "left", overflow="fold")
    for row in _rows(table.slice(0, _MOST_ROWS), text_of):
        shown.add_row(*(_short(each) for each in row))
    session.console.print(shown)
    if table.num_rows > _MOST_ROWS:
        session.say(f"… {table.num_rows:,} rows; the first {_MOST_ROWS:,} are shown. --format csv shows all.")
    else:
        session.say((f"{table.num_rows:,} row{'' if table.num_rows == 1 else 's'}", "dim"))


def _short(text: str) -> str:
    text = printable(text).replace("\n", "\\n").replace("\t", "\\t")
    return shortened(text, _LONGEST)


def write_parquet(table: Any, target: Path) -> None:
    """Whole or not at all."""
    from strobe.look.cut import save_parquet

    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(handle)
    try:
        save_parquet(table, Path(name))
        os.chmod(name, 0o644)
        os.replace(name, target)
    except OSError as error:
        raise Failed(f"{target} could not be written: {error.strerror or error}.") from error
    finally:
        Path(name).unlink(missing_ok=True)

"""The prompt of `strobe sql`: lines, history, completion of relations. An error ends the query, not the prompt."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import click

from strobe.cli.output import Session, print_error
from strobe.cli.sql_output import answer, command, spelled
from strobe.look.cut import Cut
from strobe.model.errors import StrobeError

__all__ = ["prompt"]


def prompt(cut: Cut, session: Session, shape: str) -> int:
    """Until `.quit` or the end of input. Queries end with a semicolon, and may have several lines. Returns the exit
    code: 0 at a terminal, where the user has seen the errors; a script must notice that a query failed."""
    read = _reader(cut)
    failed = 0
    manifest = cut.manifest
    if sys.stdin.isatty():
        session.say(f"{manifest.kind.value} {manifest.snapshot} of {manifest.job}: .tables shows what can be asked")
    lines: list[str] = []
    while True:
        try:
            line = read("sql> " if not lines else "...> ")
        except EOFError:
            if any(each.strip() for each in lines):
                failed = _run(cut, "\n".join(lines), session, shape) or failed
            return 0 if sys.stdin.isatty() else failed
        except KeyboardInterrupt:
            lines = []
            continue
        if not lines and line.strip() in (".quit", ".exit"):
            return 0 if sys.stdin.isatty() else failed
        if not lines and not line.strip():
            continue
        if not lines and line.strip().startswith("."):
            failed = _run(cut, line.strip(), session, shape) or failed
            continue
        lines.append(line)
        if line.rstrip().endswith(";"):
            failed = _run(cut, "\n".join(lines), session, shape) or failed
            lines = []


def _run(cut: Cut, text: str, session: Session, shape: str) -> int:
    """Run one query; returns the exit code that it would have alone."""
    try:
        if text.startswith("."):
            command(cut, text, session, shape)
        else:
            answer(cut.sql(text), session, shape)
    except StrobeError as error:
        print_error(error, error.exit_code, as_json=session.json)
        return error.exit_code
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        return 1
    return 0


def _reader(cut: Cut) -> Callable[[str], str]:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        stream = sys.stdin

        def next_line(_: str) -> str:
            line = stream.readline()
            if not line:
                raise EOFError
            return line.rstrip("\n")

        return next_line
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    words = [spelled(r) for r in cut.relations()] + ["select", "from", "where", "group by", ".tables", ".schema"]
    history = _history()
    session: PromptSession[str] = PromptSession(
        history=InMemoryHistory() if history is None else FileHistory(str(history)),
        completer=WordCompleter(words, ignore_case=True, sentence=False, WORD=True),
        complete_while_typing=False,
    )
    return lambda text: str(session.prompt(text))


def _history() -> Path | None:
    """The file of the history. It is private to the user, since queries may quote data. None if it cannot be kept."""
    place = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "strobe"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = place / "sql-history"
        file.touch(mode=0o600)
    except OSError:
        return None
    return file

"""How every command speaks.

With `--json`, standard output carries exactly one JSON value whatever happens, errors included. Without it, results go
to standard output in words and errors to standard error: what happened, what was left untouched, what to do next.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from rich.console import Console
from rich.text import Text

from strobe.model.cut import Json
from strobe.model.errors import Misuse, StrobeError

__all__ = ["ARGUMENTS", "Command", "Session", "Whole", "check_writable", "common_options", "print_error", "write_text"]

ARGUMENTS: Final = "strobe.arguments"  # where a command's context keeps what was typed after its name

_UNBOUNDED: Final = 10_000

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Session:
    """What every command is told: how to speak, and where snapshots live."""

    json: bool
    home: Path

    @property
    def console(self) -> Console:
        """Words for people: colour on a terminal, never wrapped, nothing guessed from the text."""
        return _console(stderr=False)

    def say(self, *parts: str | tuple[str, str]) -> None:
        """One line, in pieces that are text or (text, style)."""
        self.console.print(Text.assemble(*parts), soft_wrap=True)

    def answer(self, value: Json) -> None:
        click.echo(json.dumps(value, ensure_ascii=False, indent=2))


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """`main` deals with a reader that has gone, wherever it shows."""
        raise BrokenPipeError


def _console(*, stderr: bool) -> Console:
    console = _Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _UNBOUNDED  # a file or a pipe has no margin: no table is cut short or wrapped
    return console


def common_options(function: Function) -> Function:
    """`--json` and `--home`, which every command takes, handed over as `session`."""

    @functools.wraps(function)
    def command(*args: Any, json: bool, home: str, **kwargs: Any) -> Any:
        return function(*args, session=Session(json, Path(home)), **kwargs)

    home = click.option(
        "--home", metavar="DIR", default=".strobe", envvar="STROBE_HOME", show_default=True,
        help="Where snapshots live; also from STROBE_HOME.",
    )  # fmt: skip
    as_json = click.option("--json", is_flag=True, help="Answer with one JSON value, errors included.")
    return home(as_json(command))  # type: ignore[return-value]


class Whole(click.ParamType[int]):
    """A whole number from `least` up."""

    name = "number"

    def __init__(self, least: int = 0) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            number = self.least - 1
        if number < self.least:
            self.fail(f"{value!r} is not a whole number from {self.least} up.", param, ctx)
        return number


class Command(click.Command):
    """A command whose help ends with examples: pairs of what to type and what it does. What was typed is kept."""

    def __init__(self, *args: Any, examples: tuple[tuple[str, str], ...] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for line, meaning in self.examples:
                    formatter.write(f"{' ' * formatter.current_indent}# {meaning}\n")
                    formatter.write(f"{' ' * formatter.current_indent}$ {line}\n")
        super().format_epilog(ctx, formatter)


def print_error(error: StrobeError, exit_code: int, *, as_json: bool) -> None:
    if as_json:
        parts = {"what": error.what, "untouched": error.untouched, "next": error.next, "exit_code": exit_code}
        click.echo(json.dumps({"error": parts}, ensure_ascii=False, indent=2))
        return
    console = _console(stderr=True)
    console.print(Text.assemble(("error: ", "bold red"), error.what), soft_wrap=True)
    if error.untouched:
        console.print(Text.assemble("       ", error.untouched), soft_wrap=True)
    if error.next:
        console.print(Text.assemble(("next:  ", "bold"), error.next), soft_wrap=True)


def check_writable(path: str | None, option: str) -> None:
    """Refuses before any work is done what could not be written after it."""
    if path is None:
        return
    file = Path(path)
    folder = file.parent
    if file.is_dir():
        reason = "it is a directory"
    elif not folder.is_dir():
        reason = f"there is no directory {str(folder)!r}"
    elif not os.access(file if file.exists() else folder, os.W_OK):
        reason = "you may not write there"
    else:
        return
    raise Misuse(
        f"{option} cannot write to {path!r}: {reason}.",
        untouched="Nothing was run.",
        next="Name a file in a directory that exists and that you may write to.",
    )


def write_text(path: str, text: str, option: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Misuse(
            f"{option} cannot write to {path!r}: {error.strerror}.",
            next="Name a file in a directory that exists and that you may write to.",
        ) from error

"""How every command prints its results and errors.

What is printed may come from a manifest, a row or an error that somebody else wrote. It must not control the
terminal: invisible characters (escape sequences, changes of direction) are printed as `\\x1b`, by the console through
which all text goes, and as JSON escapes in JSON.

With `--json`, standard output carries exactly one JSON value whatever happens, errors included. Without it, results go
to standard output in words and errors to standard error: what happened, what was left untouched, what to do next.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from strobe.model.cut import Json
from strobe.model.errors import Misuse, StrobeError
from strobe.model.paths import HIDDEN
from strobe.store.scheme import is_s3

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "ARGUMENTS", "Command", "Session", "Whole", "check_writable", "common_options",
    "print_error", "printable", "write_text",
]  # fmt: skip

_HIDDEN: Final = re.compile(rf"(?![\t\n])[{HIDDEN}]")
_STYLED: Final = frozenset({"FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"})  # ask for what a terminal gets
ARGUMENTS: Final = "strobe.arguments"  # where a command's context keeps what was typed after its name

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Session:
    """What every command is given: how to print, and where snapshots live. `place` is what the user named."""

    json: bool
    place: str

    @property
    def home(self) -> Path:
        """The home directory. Misuse if it is a bucket: most of a home can only be in a directory."""
        if is_s3(self.place):
            raise Misuse(
                f"{self.place} is a bucket, and a home is a directory.",
                untouched="Nothing was changed.",
                next="Name a directory with --home. Checkpoints go to a bucket with `strobe run --store`. One there "
                "has an address, as in `strobe inspect s3://bucket/prefix/jobs/JOB`; `strobe ui --home` shows them.",
            )
        return Path(self.place)

    @property
    def console(self) -> Console:
        """The console for text: with colour on a terminal, never wrapped, and no markup is read from the text."""
        from strobe.cli.console import console

        return console(stderr=False)

    def say(self, *parts: str | tuple[str, str]) -> None:
        """Print one line, in pieces that are text or (text, style)."""
        _print_line(parts, stderr=False)

    def answer(self, value: Json) -> None:
        _print_json(value)


def printable(text: str) -> str:
    """`text` for a terminal: invisible characters are written as escapes; line breaks and tabs stay."""
    return _HIDDEN.sub(lambda match: ascii(match[0])[1:-1], text)


def _print_line(parts: Iterable[str | tuple[str, str]], *, stderr: bool) -> None:
    """Without a terminal styles are ignored, and the library for them is not imported."""
    if (sys.stderr if stderr else sys.stdout).isatty() or _STYLED & os.environ.keys():
        from rich.text import Text

        from strobe.cli.console import console

        console(stderr=stderr).print(Text.assemble(*parts), soft_wrap=True)
    else:
        text = "".join(part if isinstance(part, str) else part[0] for part in parts)
        _echo(printable(text), stderr=stderr)


def _echo(text: str, *, stderr: bool = False) -> None:
    try:
        click.echo(text, err=stderr)
    except BrokenPipeError:
        # `main` handles a reader that has gone. click would recognise the error by its number, and end with a 1.
        raise BrokenPipeError from None


def _print_json(value: Json) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=2)
    # These can only be inside strings, and this is how JSON spells them there.
    _echo(_HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def common_options(function: Function) -> Function:
    """`--json` and `--home`, which every command takes, handed over as `session`."""

    @functools.wraps(function)
    def command(*args: Any, json: bool, home: str, **kwargs: Any) -> Any:
        return function(*args, session=Session(json, home), **kwargs)

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
        _print_json({"error": parts})
        return
    _print_line([("error: ", "bold red"), error.what], stderr=True)
    if error.untouched:
        _print_line(["       ", error.untouched], stderr=True)
    if error.next:
        _print_line([("next:  ", "bold"), error.next], stderr=True)


def check_writable(path: str | None, option: str) -> None:
    """Refuse, before any work is done, a file that could not be written after it."""
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

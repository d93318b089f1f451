"""Options that several simulator commands share, and what is done with them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from strobe.cli.output import write_text
from strobe.model.cut import Json
from strobe.model.errors import Misuse
from strobe.model.suggest import did_you_mean
from strobe.verify.diagram import render
from strobe.verify.journal import Journal, JournalWriter

__all__ = ["check_option", "file_options", "known", "parse_params", "protocol_options", "write_files"]


def known(name: str, names: Iterable[str], what: str) -> str:
    """`name` if it is one of `names`; else Misuse, with the nearest name."""
    names = list(names)
    if name in names:
        return name
    hint = did_you_mean(name, names)
    raise Misuse(f"There is no {what} called {name!r}.", next=f"{hint}The {what}s are: {', '.join(names)}.")


def parse_params(pairs: Iterable[str]) -> dict[str, Json]:
    """`transfers=5` as whole numbers, true and false as such, anything else as a string."""
    params: dict[str, Json] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise Misuse(f"--param {pair!r} is not of the form name=value.", next="Write --param transfers=5.")
        if value in ("true", "false"):
            params[key] = value == "true"
        else:
            params[key] = int(value) if value.lstrip("-").isdecimal() else value
    return params


def protocol_options(function: Any) -> Any:
    for option in reversed((
        click.option("--protocol", "-p", metavar="P",
                     help="How snapshots are taken, see `strobe sim list`.  [default: chandy-lamport]"),
        click.option("--channels", type=click.Choice(["fifo", "reorder"]), default="fifo", show_default=True,
                     help="Whether channels keep the order of messages."),
        click.option("--force", is_flag=True,
                     help="Let a protocol that needs FIFO channels run on ones that reorder, to see it fail."),
    )):  # fmt: skip
        function = option(function)
    return function


def check_option(function: Any) -> Any:
    return click.option(
        "--check", "check", metavar="C",
        help="A stable predicate: deadlock, termination, garbage, or FILE.py:FUNCTION, which is given a cut.",
    )(function)  # fmt: skip


def file_options(function: Any) -> Any:
    for option in reversed((
        click.option("--svg", metavar="FILE", help="Draw the space–time diagram into this file."),
        click.option("--journal", metavar="FILE", help="Write the journal of the run into this file."),
    )):  # fmt: skip
        function = option(function)
    return function


def write_files(of: Journal, svg: str | None, journal: str | None) -> dict[str, str]:
    """Write the files that were asked for; returns what was written, by kind."""
    files = {}
    if journal is not None:
        with JournalWriter(journal, of.header) as writer:
            for event in of.events:
                writer.write(event)
        files["journal"] = journal
    if svg is not None:
        write_text(svg, render(of), "--svg")
        files["svg"] = svg
    return files

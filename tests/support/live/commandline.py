"""`strobe` as other terminals call it, and systems that run in the background until the test is over."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strobe.cli.main import main

__all__ = ["EXAMPLES", "Done", "Terminal", "up"]

EXAMPLES = Path(__file__).parents[3] / "examples" / "live"


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Terminal:
    """In this directory, with its own home."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = directory / ".strobe"

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "strobe.cli.main", *args]

    def __call__(self, *args: str) -> Done:
        if args[:2] not in (("live", "up"), ("live", "node"), ("live", "check")):
            return self._here(*args)
        return self.outside(*args)

    def outside(self, *args: str) -> Done:
        """In a process of its own."""
        done = subprocess.run(
            self.command(*args), cwd=self.directory, capture_output=True, text=True, check=False, timeout=60
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def _here(self, *args: str) -> Done:
        """In this process, which is quicker. What loads a topology would bring its messages here, and has its own."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.chdir(self.directory), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main(args)
            except SystemExit as end:
                return Done(int(end.code or 0), out.getvalue(), err.getvalue())

    def ask(self, *args: str) -> Any:
        """The JSON answer of a command that must succeed."""
        done = self(*args, "--json")
        assert done.code == 0, done.out + done.err
        return done.json


@contextmanager
def up(strobe: Terminal, *args: str) -> Iterator[dict[str, Any]]:
    """The system in the background; down at the end, whatever happens."""
    started = strobe.ask("live", "up", "-d", *args)
    try:
        yield started
    finally:
        strobe("live", "down", started["system"], "--now")

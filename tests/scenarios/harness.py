"""Golden scenarios: commands to a small system, each followed by the trace that must come of it.

A file is a story for a reviewer: a comment that says what it shows, the system, then commands; below each command, two
spaces in, what the machines answered. `play` performs the commands on the real machines and gives the file back with
the traces as they are now. So a scenario holds exactly when playing it changes nothing, and a change of a protocol
reads as a diff of traces. README.md beside this module documents the language.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from strobe.model.errors import PeerFault, ProtocolError

__all__ = ["BadScenario", "Setup", "World", "judge", "play", "refusal"]

INDENT = "  "


class BadScenario(Exception):
    """The file is not written in the language: a mistake of its author, not of a machine."""


@dataclass
class Setup:
    """The system that the lines before the first command describe: words by directive, in the order of the file."""

    protocol: tuple[str, ...] = ()
    lines: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def words(self, *directives: str) -> list[str]:
        return [word for directive, words in self.lines if directive in directives for word in words]


class World(Protocol):
    """A system that takes commands. A trace that is an empty list is written as `(nothing)`."""

    def do(self, verb: str, words: tuple[str, ...]) -> list[str]: ...


DIRECTIVES = ("nodes", "channels", "reordering", "feedback", "settings")


def play(text: str, worlds: Mapping[str, Callable[[Setup], World]]) -> str:
    """The scenario with the traces that its commands have now. `worlds` makes a system by the name of its protocol."""
    if not text.startswith("# "):
        raise BadScenario("line 1: a scenario opens with a comment that says what it shows")
    setup = Setup()
    world: World | None = None
    out: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(INDENT):
            continue  # an old trace
        out.append(line)
        verb, *rest = line.split() or [""]
        words = tuple(rest)
        if not verb or verb.startswith("#"):
            continue
        try:
            if verb == "protocol" and not setup.protocol:
                setup.protocol = words
            elif verb in DIRECTIVES and world is None:
                setup.lines.append((verb, words))
            else:
                if world is None:
                    world = _make(setup, worlds)
                out += [INDENT + answer for answer in world.do(verb, words) or ["(nothing)"]]
        except (BadScenario, KeyError, ValueError, IndexError) as error:
            raise BadScenario(f"line {number}, {line!r}: {error or type(error).__name__}") from error
    if world is None:
        raise BadScenario("the scenario has no commands")
    return "\n".join(out) + "\n"


def _make(setup: Setup, worlds: Mapping[str, Callable[[Setup], World]]) -> World:
    name = setup.protocol[0] if setup.protocol else ""
    if name not in worlds:
        raise BadScenario(f"the first line must be 'protocol NAME', with one of: {', '.join(worlds)}")
    return worlds[name](setup)


def judge(path: Path, worlds: Mapping[str, Callable[[Setup], World]], *, rewrite: bool = False) -> str | None:
    """None if the file is what playing it gives; else what a person needs to see. Only `rewrite` changes the file."""
    expected = path.read_text(encoding="utf-8")
    played = play(expected, worlds)
    if played == expected:
        return None
    if rewrite:
        path.write_text(played, encoding="utf-8")
        return None
    names = f"{path.name} (expected)", f"{path.name} (played)"
    diff = difflib.unified_diff(expected.splitlines(), played.splitlines(), *names, lineterm="", n=4)
    traces = any(line.startswith(INDENT) for line in expected.splitlines())
    why = "the traces differ" if traces else "the scenario has no expected traces yet"
    return f"{path.name}: {why}. If this is meant, run pytest with --rewrite and read the diff.\n" + "\n".join(diff)


def refusal(fault: ProtocolError) -> str:
    whose = "the peer's fault" if isinstance(fault, PeerFault) else "the host's fault"
    return f"refused, {whose}: {fault}"

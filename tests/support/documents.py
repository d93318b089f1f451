"""Runs the fenced blocks of a Markdown document, in order, as its reader would.

Each document gets a fresh directory that holds a copy of examples/, and keeps it, with working directory, exported
variables and Python names, from one block to the next. CONTRIBUTING.md says how to write the blocks.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import textwrap
import threading
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["ALIASES", "NEEDS", "ROOT", "RUN", "Block", "DocumentFault", "Shell", "blocks_of", "first_missing"]

ROOT = Path(__file__).parents[2]

RUN = ("console", "bash", "python")
ALIASES = {"sh": "bash", "shell": "bash", "zsh": "bash", "py": "python", "python3": "python", "pycon": "python"}
PATIENCE = 300  # seconds for one command

FENCE = re.compile(r"(?P<indent> *)(?P<ticks>`{3,}|~{3,}) *(?P<language>[\w+-]*)[^`]*")
NOT_RUN = re.compile(r"<!-- *not run:? *(?P<reason>.*?) *-->")
NEEDS = re.compile(r"<!-- *needs: *(?P<names>[\w ,-]+?) *-->")
EXIT = re.compile(r"# exit (\d+)")


class DocumentFault(AssertionError):
    """A block that does not do what the document says."""


@dataclass(frozen=True)
class Block:
    line: int  # of the first line inside the fence
    language: str
    text: str
    not_run: str | None = None  # the reason, possibly empty


@dataclass
class Command:
    line: int
    text: str
    exit_code: int = 0
    expected: list[str] = field(default_factory=list)


def blocks_of(document: str) -> list[Block]:
    """The fenced blocks of a Markdown text; a fence closes with at least as many ticks as it opened with."""
    found: list[Block] = []
    lines = document.splitlines()
    not_run = None
    i = 0
    while i < len(lines):
        fence = FENCE.fullmatch(lines[i])
        if fence is None:
            comment = NOT_RUN.fullmatch(lines[i].strip())
            if comment is not None:
                not_run = comment["reason"]
            elif lines[i].strip():
                not_run = None  # the comment must stand right before its block
            i += 1
            continue
        close = re.compile(rf" *{fence['ticks'][0]}{{{len(fence['ticks'])},}} *")
        end = next((j for j in range(i + 1, len(lines)) if close.fullmatch(lines[j])), None)
        if end is None:
            raise DocumentFault(f"line {i + 1}: the block is never closed")
        text = textwrap.dedent("\n".join(lines[i + 1 : end]) + "\n")
        found.append(Block(i + 2, fence["language"], text, not_run))
        not_run = None
        i = end + 1
    return found


def commands_of(block: Block) -> list[Command]:
    """The commands of a console block: `$ ` starts one, `> ` goes on with it, what follows is its output."""
    commands: list[Command] = []
    fresh = False  # directly after the command's last line
    for number, line in enumerate(block.text.splitlines(), block.line):
        if line.startswith("$ "):
            commands.append(Command(number, line[2:]))
            fresh = True
        elif not commands:
            raise DocumentFault(f"line {number}: output before the first command: {line!r}")
        elif fresh and line.startswith("> "):
            commands[-1].text += "\n" + line[2:]
        elif fresh and EXIT.fullmatch(line):
            commands[-1].exit_code = int(line.split()[-1])
            fresh = False
        else:
            commands[-1].expected.append(line)
            fresh = False
    return commands


_COLUMNS = re.compile(r"(?<=\S) {2,}(?=\S)")


def first_missing(expected: list[str], output: str) -> str | None:
    """The first expected line that the output does not have, in order; None if it has all. `...` matches anything.
    Columns may stand further apart: how wide one is, a figure below it decides."""
    rest = iter(_COLUMNS.sub("  ", line.rstrip()) for line in output.splitlines())
    for line in expected:
        if line.strip() in ("", "..."):
            continue
        text = _COLUMNS.sub("  ", line.rstrip())
        pattern = re.compile(".*".join(re.escape(part) for part in text.split("...")))
        if not any(pattern.fullmatch(candidate) for candidate in rest):
            return line
    return None


class Shell:
    """One document's directory, and the processes that its blocks run in."""

    # Working directory and exported variables outlive a command, as in a terminal.
    REMEMBER = 'trap \'code=$?; { export -p; printf "cd %q\\n" "$PWD"; } >"$STROBE_DOC_STATE"; exit $code\' EXIT'

    # One interpreter per document; blocks come in as files, so that tracebacks and inspect see their source.
    PYTHON = textwrap.dedent("""
        import linecache, sys, traceback
        names = {"__name__": "__main__"}
        sys.path.insert(0, "")
        for request in sys.stdin:
            path = request.rstrip("\\n")
            source = open(path, encoding="utf-8").read()
            code = 0
            try:
                exec(compile(source, path, "exec"), names)
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
            except BaseException:
                traceback.print_exc()
                code = 1
            sys.stdout.flush()
            sys.stderr.flush()
            print(f"\\n\\x04{code}", flush=True)
    """)

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory / "here"
        self.name = name
        self._scratch = directory / "scratch"
        self._state = self._scratch / "state.sh"
        self._python: subprocess.Popen[str] | None = None
        self.directory.mkdir()
        self._scratch.mkdir()
        self._state.write_text("")
        if (ROOT / "examples").is_dir():
            shutil.copytree(
                ROOT / "examples", self.directory / "examples", ignore=shutil.ignore_patterns("__pycache__")
            )
        self._environ = {
            **{k: v for k, v in os.environ.items() if k != "STROBE_HOME" and not k.startswith("PYTEST_")},
            "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]]),
            "STROBE_DOC_STATE": str(self._state),
            "NO_COLOR": "1",
            "TERM": "dumb",
            "COLUMNS": "120",
            "PYTHONUNBUFFERED": "1",
        }
        # All blocks run in one process group. This process leads it and does nothing else, so that the group's number
        # stays ours until the end, when whatever a document left in the background is ended with it.
        self._leader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, process_group=0)

    def run(self, blocks: list[Block]) -> None:
        try:
            for number, block in enumerate(blocks):
                if block.not_run is not None or block.language not in RUN:
                    continue
                if block.language == "console":
                    for command in commands_of(block):
                        self._bash(command)
                elif block.language == "bash":
                    self._bash(Command(block.line, "set -e\n" + block.text))
                else:
                    self._run_python(block, number)
        finally:
            self._end()

    def _bash(self, command: Command) -> None:
        program = f'source "$STROBE_DOC_STATE"\n{self.REMEMBER}\n{command.text}'
        output_file = self._scratch / "output"
        # A file, not a pipe: a command may leave a process running in the background, which would keep a pipe open.
        with output_file.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", program],
                cwd=self.directory,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=self._leader.pid,
            )
            try:
                code = process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                raise self._fault(command.line, command.text, f"ran for more than {PATIENCE} s", output_file) from None
        if code != command.exit_code:
            raise self._fault(command.line, command.text, f"exit code {code}, not {command.exit_code}", output_file)
        missing = first_missing(command.expected, output_file.read_text(errors="replace"))
        if missing is not None:
            raise self._fault(command.line, command.text, f"no line {missing!r} where expected", output_file)

    def _run_python(self, block: Block, number: int) -> None:
        named = re.match(r"# file: (\S+)\n", block.text)
        if named is not None:
            path = self.directory / named[1]
            if not path.resolve().is_relative_to(self.directory.resolve()):
                raise DocumentFault(f"{self.name}:{block.line}: {named[1]} is outside the document's directory")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
            return
        # Padded, so that a traceback shows the document's own line numbers.
        path = self._scratch / f"block-{number}.py"
        path.write_text("\n" * (block.line - 1) + block.text)
        output_file = self._scratch / f"block-{number}.out"
        code = self._interpret(path, output_file)
        if code != 0:
            raise self._fault(block.line, block.text.strip(), f"exit code {code}, not 0", output_file)

    def _interpret(self, path: Path, output_file: Path) -> int:
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-c", self.PYTHON],
                cwd=self.directory,
                env=self._environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                process_group=self._leader.pid,
            )
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(f"{path}\n")
        self._python.stdin.flush()
        alarm = threading.Timer(PATIENCE, self._python.kill)
        alarm.start()
        try:
            with output_file.open("w") as output:
                for line in self._python.stdout:
                    if line.startswith("\x04"):
                        return int(line[1:])
                    output.write(line)
            return self._python.wait()
        finally:
            alarm.cancel()

    def _end(self) -> None:
        if self._python is not None and self._python.stdin is not None and self._python.poll() is None:
            self._python.stdin.close()  # it ends by itself, and runs what it has to run at its end
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._python.wait(60)
        os.killpg(self._leader.pid, signal.SIGKILL)
        for process in (self._leader, self._python):
            if process is not None:
                process.wait()

    def _fault(self, line: int, text: str, what: str, output_file: Path) -> DocumentFault:
        output = output_file.read_text(errors="replace").rstrip() or "(nothing)"
        return DocumentFault(f"{self.name}:{line}: {what}\n\n$ {text}\n\nIt printed:\n{output}")

"""Where in the user's code an error was raised, in words: `(pipeline.py, line 12)`.

For an error in this process the frames are known. An error in a worker comes as text, with the traceback in it. Frames
of Spark, Strobe, Python and installed packages are passed over: the innermost frame of the user's own says what failed,
the outermost in another file how it came there.
"""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

__all__ = ["ARCHIVE", "MODULE", "PACKAGE", "declared_in", "is_foreign", "line_words", "lines_in_text", "raised_in"]

MODULE: Final = "strobe_user_pipeline"  # what a pipeline's file is called as a module
PACKAGE: Final = next(
    p for p in Path(__file__).parents if p.name == "strobe"
)  # Strobe's own, wherever this file is in it
ARCHIVE: Final = "strobe-code-"  # begins the name of a directory with the user's code, made for workers

_FRAME: Final = re.compile(r'^\s*File "([^"\n]+)", line (\d+)', re.MULTILINE)
_SHIPPED: Final = re.compile(rf".*/{ARCHIVE}\w+/\d+/")
_OTHERS: Final = ("/site-packages/", "/dist-packages/", "/pyspark.zip/", "/pyspark/python/", "/py4j-")
_PYTHON: Final = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))

Line = tuple[str, int]


def raised_in(error: BaseException) -> str:
    """Where an error of this process, or of a worker that Spark has told about, was raised."""
    frames = [(f.filename, f.lineno or 0) for f in traceback.extract_tb(error.__traceback__)]
    return line_words(lines_in_text(str(error)) or _users(frames))


def declared_in(function: Callable[..., Any]) -> str:
    """Where a function begins."""
    code = getattr(function, "__code__", None)
    return line_words([(code.co_filename, code.co_firstlineno)]) if code is not None else ""


def lines_in_text(text: str) -> list[Line]:
    """The user's frames in the last traceback of the text, outermost first."""
    last = text.rpartition("Traceback (most recent call last):")[2]
    return _users([(file, int(line)) for file, line in _FRAME.findall(last)])


def line_words(lines: Sequence[Line]) -> str:
    if not lines:
        return ""
    file, line = lines[-1]
    callers = [f"{_shown(f)}, line {n}" for f, n in lines if f != file]
    return f" ({_shown(file)}, line {line}{f', called from {callers[0]}' if callers else ''})"


def _users(frames: Sequence[Line]) -> list[Line]:
    return [(file, line) for file, line in frames if not is_foreign(file)]


def is_foreign(file: str) -> bool:
    """Whether a file is Spark's, Strobe's, Python's, or an installed package's."""
    if file.startswith("<") or any(part in file for part in _OTHERS):
        return True
    return any(file.startswith(f"{directory}{os.sep}") for directory in (*_PYTHON, PACKAGE))


def _shown(file: str) -> str:
    """The path, as short as it can be without being ambiguous."""
    here = f"{os.getcwd()}{os.sep}"
    return _SHIPPED.sub("", file).removeprefix(here)

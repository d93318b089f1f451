"""Finding what in a function cannot be sent to Spark's workers.

A function takes along what it uses: variables of its file, of the functions around it, attributes. Python says only of
which type the thing is that cannot be pickled. Here it is looked for, along the names by which the function reaches it.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark import cloudpickle

from strobe.hosts.spark.pipeline.user_lines import is_foreign

__all__ = ["culprit"]

_DEPTH = 8
_dumps: Any = cloudpickle.dumps
_globals_of: Any = cloudpickle.cloudpickle._extract_code_globals


def culprit(error: BaseException) -> str:
    """The culprit in words, for an error that pyspark's serializer has raised. Empty if it cannot be found."""
    step = error.__traceback__
    while step is not None:
        code, names = step.tb_frame.f_code, step.tb_frame.f_locals
        if code.co_name == "dumps" and "pyspark" in code.co_filename and "obj" in names:
            path = _search(names["obj"], _DEPTH)
            return " → ".join(path)
        step = step.tb_next
    return ""


def _search(thing: Any, depth: int) -> list[str]:
    """The names from `thing` to what cannot be pickled."""
    if depth == 0:
        return []
    for name, part in _parts(thing):
        if not _can_be_pickled(part):
            return [*([name] if name else []), *_search(part, depth - 1)]
    return [f"a {type(thing).__module__}.{type(thing).__qualname__}".replace("a builtins.", "a ")]


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, types.MethodType):
        yield from (("", thing.__func__), ("self", thing.__self__))
    elif isinstance(thing, types.FunctionType):
        code = thing.__code__
        cells = zip(code.co_freevars, thing.__closure__ or (), strict=True)
        yield from ((name, cell.cell_contents) for name, cell in cells if _is_filled(cell))
        names: Iterable[str] = _globals_of(code)
        yield from ((name, thing.__globals__[name]) for name in names if name in thing.__globals__)
    elif isinstance(thing, type):
        yield from ((name, value) for name, value in vars(thing).items() if not name.startswith("__"))
        yield from ((name, value) for name, value in vars(thing).items() if isinstance(value, types.FunctionType))
    elif isinstance(thing, tuple | list):
        yield from (("", part) for part in thing)
    elif isinstance(thing, dict):
        yield from ((str(key), part) for key, part in thing.items())
    elif _is_users(type(thing)):
        yield from getattr(thing, "__dict__", {}).items()


def _is_users(kind: type) -> bool:
    """Whether it belongs to the user's code. Objects of Spark and Python are not searched."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is not None and not is_foreign(file)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _can_be_pickled(thing: Any) -> bool:
    try:
        _dumps(thing)
    except Exception:
        return False
    return True

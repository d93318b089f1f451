"""A function of the user's own, named as `FILE.py:FUNCTION`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from strobe.model.errors import Misuse

__all__ = ["function_named", "is_function_name"]


def is_function_name(text: str) -> bool:
    path, colon, name = text.rpartition(":")
    return bool(colon) and path.endswith(".py") and name.isidentifier()


def function_named(text: str) -> Callable[..., Any]:
    """Loads the file, under a name of its own, and finds the function. Modules beside the file can be imported."""
    path, _, name = text.rpartition(":")
    file = Path(path)
    if not file.is_file():
        raise Misuse(f"There is no file {path!r}.", next="Name a Python file and a function in it: checks.py:unfair.")
    spec = importlib.util.spec_from_file_location(f"strobe_check_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise Misuse(f"{path} is not a Python file.")
    directory = str(file.parent.resolve())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise Misuse(
            f"{path} cannot be loaded: {type(error).__name__}: {error}.", next="Fix the file and ask again."
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise Misuse(f"{path} has no function {name!r}.", next="It takes a cut, and says whether it holds there.")
    return function  # type: ignore[no-any-return]

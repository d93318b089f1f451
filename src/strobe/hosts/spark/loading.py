"""Finding the pipeline in a user's file: `FILE` if it declares one, `FILE:name` if it declares several."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path

from strobe.hosts.spark.pipeline import Pipeline
from strobe.model.errors import Misuse, StrobeError
from strobe.model.extras import missing_extra

__all__ = ["load_pipeline"]

_MODULE = "strobe_user_pipeline"


def load_pipeline(target: str) -> Pipeline:
    name, wanted = target, ""
    if not Path(target).is_file() and ":" in target:
        name, _, wanted = target.rpartition(":")
    path = Path(name)
    if not path.is_file():
        raise Misuse(f"There is no file {name!r}.", next="Name a Python file that declares a strobe.Pipeline.")
    found = _pipelines(path)
    if wanted:
        found = {n: p for n, p in found.items() if wanted in (n, p.name)}
    distinct = {id(p): p for p in found.values()}
    if len(distinct) == 1:
        return next(iter(distinct.values()))
    if not distinct:
        what = f"no pipeline {wanted!r}" if wanted else "no strobe.Pipeline"
        raise Misuse(
            f"{name} declares {what} at its top level.", next='Declare one: pipeline = strobe.Pipeline("name").'
        )
    raise Misuse(
        f"{name} declares {len(distinct)} pipelines: {', '.join(sorted(p.name for p in distinct.values()))}.",
        next=f"Say which one: {name}:{next(iter(found))}",
    )


def _pipelines(path: Path) -> dict[str, Pipeline]:
    """Import the file as if its directory were the working directory of a script."""
    sys.path.insert(0, str(path.absolute().parent))
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise Misuse(f"{path} cannot be imported: it is not a Python file.", next="Name a file whose name ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    try:
        spec.loader.exec_module(module)
    except StrobeError:
        raise
    except ModuleNotFoundError as error:
        raise missing_extra(error) or _unloadable(error, path) from error
    except (Exception, SystemExit) as error:
        raise _unloadable(error, path) from error
    return {n: p for n, p in vars(module).items() if isinstance(p, Pipeline)}


def _unloadable(error: BaseException, path: Path) -> Misuse:
    return Misuse(
        f"{path} cannot be loaded: {type(error).__name__}: {_words(error)}{_line(error, path)}.",
        untouched="Nothing was started.",
        next="Mend the file and run again.",
    )


def _words(error: BaseException) -> str:
    return error.msg if isinstance(error, SyntaxError) else str(error).rstrip(".")


def _line(error: BaseException, path: Path) -> str:
    """Where in the user's file, not in what it calls."""
    if isinstance(error, SyntaxError):
        elsewhere = error.filename and Path(error.filename).name != path.name
        return f" ({error.filename}, line {error.lineno})" if elsewhere else f" (line {error.lineno})"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == path.absolute()]
    return f" (line {lines[-1]})" if lines else ""

"""Modules of the user's that a worker cannot import, because there is no Spark where it runs.

`@udf("long")` asks Spark what the type is, and `F.col("x")` makes a column there. At the top level of a module this
happens whenever the module is imported, which works in the driver only. Spark names a function in such a module, and
the worker that imports it fails. So these modules, and those that import them, are pickled by value, as the pipeline's
own file is.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FunctionType, ModuleType

from pyspark import SparkContext, cloudpickle
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.udf import UserDefinedFunction

__all__ = ["modules_needing_spark", "pickle_by_value"]

_OF_SPARK = (Column, DataFrame, SparkSession, SparkContext)


def pickle_by_value(roots: Sequence[Path]) -> None:
    """Have those of the loaded modules below `roots` that workers cannot import pickled by value."""
    for module in modules_needing_spark(roots):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def modules_needing_spark(roots: Sequence[Path]) -> list[ModuleType]:
    """The modules loaded from `roots` that need Spark to be imported."""
    loaded = {name: module for name, module in list(sys.modules.items()) if _is_below(module, roots)}
    needing = {name for name, module in loaded.items() if any(map(_asks_spark, list(vars(module).values())))}
    waiting = set(needing)
    while waiting:
        waiting = {name for name in loaded.keys() - needing if _imports(name, loaded[name]) & waiting}
        needing |= waiting
    return [loaded[name] for name in sorted(needing)]


def _is_below(module: ModuleType, roots: Sequence[Path]) -> bool:
    file = getattr(module, "__file__", None)
    if not isinstance(module, ModuleType) or not file or module.__name__ == "__main__":
        return False
    return any(Path(file).absolute().is_relative_to(root) for root in roots)


def _asks_spark(value: object) -> bool:
    """Whether making this object needs Spark: an object of Spark's, a function with a type as text, or a collection of
    these."""
    if isinstance(value, list | tuple | set | frozenset):
        return any(isinstance(each, _OF_SPARK) for each in value)
    if isinstance(value, dict):
        return any(isinstance(each, _OF_SPARK) for each in value.values())
    return isinstance(value, _OF_SPARK) or any(isinstance(f._returnType, str) for f in _declared(value))


def _declared(value: object) -> Iterator[UserDefinedFunction]:
    """What `udf` gives is a function around a UserDefinedFunction."""
    cells = (value.__closure__ or ()) if isinstance(value, FunctionType) else ()
    for cell in cells:
        with contextlib.suppress(ValueError):  # an empty cell
            if isinstance(cell.cell_contents, UserDefinedFunction):
                yield cell.cell_contents


# ── who imports whom ────────────────────────────────────────────────────────────────────────────────────────────────


def _imports(name: str, module: ModuleType) -> frozenset[str]:
    """The modules that it imports at its top level, by their full names."""
    package = name if hasattr(module, "__path__") else name.rpartition(".")[0]
    return _imports_in(str(module.__file__), package)


@functools.cache
def _imports_in(file: str, package: str) -> frozenset[str]:
    found: set[str] = set()
    try:
        body = ast.parse(Path(file).read_bytes()).body
    except (OSError, SyntaxError, ValueError):  # compiled, or inside an archive
        return frozenset()
    for node in body:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            with contextlib.suppress(ImportError):  # more dots than packages
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                found.update((base, *(f"{base}.{alias.name}" for alias in node.names)))
    return frozenset(found)

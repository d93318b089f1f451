"""Finding the pipeline in a user's file: `FILE` if it declares one, `FILE:name` if it declares several.

The file is run as a module of a name that nobody else has. Workers cannot import that: its functions and classes are
pickled by value, as Spark does with a script's. While it runs its directory is the first place that modules are looked
for in, as for a script; afterwards it comes behind Python's own, where a `random.py` in it does no harm, and before
everything else. A file in a package can import from that package, by name and by dots.

A file may need Spark while it is loaded: `@udf("long")`, `F.col("x")`, `SparkSession.builder.getOrCreate()` at its top
level. Then Spark is started and the file loaded again, from its top.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pyspark
from pyspark import SparkContext, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from strobe.hosts.spark.jvm.java import find_java
from strobe.hosts.spark.jvm.session import DEFAULT_MASTER, spark_session
from strobe.hosts.spark.pipeline.pipeline import Pipeline
from strobe.hosts.spark.pipeline.py_files import use_py_files
from strobe.hosts.spark.pipeline.user_code import hidden_names
from strobe.hosts.spark.pipeline.user_lines import MODULE
from strobe.model.errors import Misuse, StrobeError
from strobe.model.extras import missing_extra

__all__ = ["load_pipeline"]

_log = logging.getLogger("strobe.job")
_NO_ATTRIBUTE: Final = re.compile(r"module '(\w+)[\w.]*' has no attribute")
_INSTALLED: Final = ("site-packages", "dist-packages")
_NOT_SETTINGS: Final = ("spark.master", "spark.app.name", "spark.remote")


def load_pipeline(
    target: str, *, py_files: Sequence[str] = (), master: str | None = None, home: Path | None = None
) -> Pipeline:
    """`master`: where Spark is started if the file needs it. `home`: the directory that Spark's log goes to."""
    name, wanted = target, ""
    if not Path(target).is_file() and ":" in target:
        name, _, wanted = target.rpartition(":")
    path = Path(name)
    if not path.is_file():
        what = f"{name!r} is a directory." if path.is_dir() else f"There is no file {name!r}."
        raise Misuse(what, next="Name a Python file that declares a strobe.Pipeline.")
    places = use_py_files(py_files)
    found = _chosen(_load(path, wanted, master, home), wanted)
    distinct = {id(p): p for p in found.values()}
    if len(distinct) == 1:
        pipeline = next(iter(distinct.values()))
        pipeline.py_files = places
        return pipeline
    if not distinct:
        what = f"no pipeline {wanted!r}" if wanted else "no strobe.Pipeline"
        raise Misuse(
            f"{name} declares {what} at its top level.", next='Declare one: pipeline = strobe.Pipeline("name").'
        )
    raise Misuse(
        f"{name} declares {len(distinct)} pipelines: {', '.join(sorted(p.name for p in distinct.values()))}.",
        next=f"Say which one: {name}:{next(iter(found))}",
    )


def _chosen(module: ModuleType, wanted: str) -> dict[str, Pipeline]:
    found = {n: p for n, p in vars(module).items() if isinstance(p, Pipeline)}
    return {n: p for n, p in found.items() if wanted in (n, p.name)} if wanted else found


def _load(path: Path, wanted: str, master: str | None, home: Path | None) -> ModuleType:
    package, root = _package(path)
    module = _module(path, package)
    try:
        with _imports_from([path.absolute().parent, *([root] if package else [])]):
            try:
                with _without_spark():
                    _execute(module, package)
            except (_NeedsSpark, PySparkException, AssertionError) as error:
                if SparkContext._active_spark_context is not None or not _is_need(error):
                    raise
                declared = [p.conf for p in _chosen(module, wanted).values()] or _written_settings(path)
                settings = {key: value for conf in declared for key, value in conf.items()}
                _start_spark(master, {**getattr(error, "settings", {}), **settings}, home)
                module = _module(path, package)
                _execute(module, package)
    except StrobeError:
        raise
    except ModuleNotFoundError as error:
        raise missing_extra(error) or _unloadable(error, path) from error
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # SystemExit, and what the file has of its own
        raise _unloadable(error, path) from error
    return module


# ── the file as a module ────────────────────────────────────────────────────────────────────────────────────────────


def _package(path: Path) -> tuple[str, Path]:
    """The package that the file is in, and the directory where that begins; no name if it is in none."""
    root = path.absolute().parent
    names: list[str] = []
    while (root / "__init__.py").is_file() and root.name.isidentifier() and root != root.parent:
        names.insert(0, root.name)
        root = root.parent
    return ".".join(names), root


def _module(path: Path, package: str) -> ModuleType:
    name = f"{package}.{MODULE}" if package else MODULE
    spec = importlib.util.spec_from_file_location(name, path.absolute())
    if spec is None or spec.loader is None:
        raise Misuse(f"{path} cannot be imported: it is not a Python file.", next="Name a file whose name ends in .py.")
    return importlib.util.module_from_spec(spec)


def _execute(module: ModuleType, package: str) -> None:
    if package:
        importlib.import_module(package)
    sys.modules[module.__name__] = module
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    loader: Any = module.__spec__ and module.__spec__.loader
    loader.exec_module(module)


@contextlib.contextmanager
def _imports_from(directories: Sequence[Path]) -> Iterator[None]:
    places = [str(directory) for directory in directories]
    sys.path[:0] = places
    try:
        yield
    finally:
        for place in places:
            sys.path.remove(place)
        before = (i for i, p in enumerate(sys.path) if p in ("", os.getcwd()) or p.endswith(_INSTALLED))
        index = next(before, len(sys.path))
        sys.path[index:index] = [place for place in dict.fromkeys(places) if place not in sys.path]


# ── Spark while it is loaded ────────────────────────────────────────────────────────────────────────────────────────


class _NeedsSpark(BaseException):
    """The file makes a session. Not an Exception: a file that catches those must not catch this."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = settings


@contextlib.contextmanager
def _without_spark() -> Iterator[None]:
    """Notice that the file needs a session: a file that makes one itself is to get Strobe's, with its settings."""
    builder: Any = SparkSession.Builder
    original = builder.getOrCreate

    def get(self: Any) -> SparkSession:
        if SparkContext._active_spark_context is None:
            raise _NeedsSpark({k: str(v) for k, v in self._options.items() if k not in _NOT_SETTINGS})
        session: SparkSession = original(self)
        return session

    builder.getOrCreate = get
    try:
        yield
    finally:
        builder.getOrCreate = original


def _is_need(error: BaseException) -> bool:
    """Whether pyspark has failed because there is no session."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = bool(frames) and Path(frames[-1].filename).is_relative_to(Path(pyspark.__file__).parent)
    return isinstance(error, _NeedsSpark) or inside


def _written_settings(path: Path) -> list[Mapping[str, str]]:
    """The `conf` of pipelines that are declared further down, as far as it is written out there."""
    found: list[Mapping[str, str]] = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Pipeline"):
            for keyword in node.keywords:
                with contextlib.suppress(ValueError, StrobeError):
                    if keyword.arg == "conf":
                        found.append(Pipeline("written", conf=ast.literal_eval(keyword.value)).conf)
    return found


def _start_spark(master: str | None, settings: Mapping[str, str], home: Path | None) -> None:
    os.environ["JAVA_HOME"] = str(find_java())
    _log.info("Spark starts: the file needs it")
    spark_session("strobe", master or DEFAULT_MASTER, extra=settings, home=home)


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _unloadable(error: BaseException, path: Path) -> Misuse:
    return Misuse(
        f"{path} cannot be loaded: {type(error).__name__}: {_words(error)}{_line(error, path)}.",
        untouched="Nothing was started.",
        next=_advice(error, path) or "Fix the file and run again.",
    )


def _words(error: BaseException) -> str:
    return error.msg if isinstance(error, SyntaxError) else str(error).rstrip(".")


def _advice(error: BaseException, path: Path) -> str:
    """Advice for a failed import: a module beside the file cannot be imported if its name is taken, and Python does not
    say why."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] not in sys.modules:
        return "Put the module beside the file, hand it over with --py-files, or install it."
    match = _NO_ATTRIBUTE.search(str(error))
    name = (error.name if isinstance(error, ImportError) else match[1] if match else None) or ""
    name = name.partition(".")[0]
    if name not in hidden_names(path.absolute().parent):
        return ""
    kind = "Python has a module" if name in sys.stdlib_module_names else "an installed package is"
    return f"Rename {name} beside the file: {kind} of that name, which is the one that is imported."


def _line(error: BaseException, path: Path) -> str:
    """Where in the user's file, not in what it calls."""
    if isinstance(error, SyntaxError):
        places = [error.filename] if error.filename and Path(error.filename).name != path.name else []
        places += [f"line {error.lineno}"] if error.lineno else []
        return f" ({', '.join(places)})" if places else ""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == path.absolute()]
    return f" (line {lines[-1]})" if lines else ""

"""The user's Python code on Spark's workers.

Spark sends a function to a worker as a pickle. What is in the pipeline's own file travels inside the pickle, by value
(`loading`), and so does what is in modules that need Spark to be imported (`needing_spark`). What else that file
imports is named in the pickle, and the worker must be able to import it, too. The rule here: **what the driver can
import, a worker can import, and gets the same file.**

*Which directories.* Every entry of the driver's `sys.path` that is not part of its Python: the pipeline's directory, a
package's root, `--py-files`, `PYTHONPATH`, what the file itself has added.

*On this machine* the workers' `PYTHONPATH` names the same directories.

*On a cluster* the code goes along in an archive, which executors unpack: of the pipeline's directory and of
`--py-files` every module and package; of other directories the modules and packages that have been imported. Packages
are taken whole, with their data files.

*Names that are taken.* A directory may hold a `random.py` or `test.py` that has nothing to do with the job. The driver
never sees it, since Python's own module is loaded already; a worker would find it first, and break. Such names are
left out. Nor does a worker look into its working directory, where there may be another module of that name.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import shutil
import site
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark import SparkContext, SparkFiles

from strobe.hosts.spark.pipeline.needing_spark import pickle_by_value
from strobe.hosts.spark.pipeline.pipeline import Pipeline
from strobe.hosts.spark.pipeline.user_lines import ARCHIVE, PACKAGE

__all__ = ["CodeRoot", "code_entries", "code_roots", "give_to_workers", "hidden_names"]

_log = logging.getLogger("strobe.job")
_LARGE = 50 * 1024 * 1024  # bytes: a larger archive is worth a warning
_TABLES = ("_delta_log", "_spark_metadata")


@dataclass(frozen=True)
class CodeRoot:
    """A directory or zip file that modules are imported from. `whole`: also those that nobody has imported yet."""

    path: Path
    whole: bool


def give_to_workers(pipeline: Pipeline, context: SparkContext) -> None:
    """Make the user's modules known to the workers. Before the first of the user's functions is called: Spark notes
    for each function where its modules are when it is declared."""
    roots = code_roots(pipeline)
    pickle_by_value([root.path for root in roots if root.path != PACKAGE.parent])
    paths = [_without_hidden(root.path) for root in roots]
    context.environment["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    context.environment["PYTHONSAFEPATH"] = "1"
    if str(context.master).startswith("local"):
        return
    archive, places = _archive(roots)
    if places:
        context.addArchive(f"{archive}#{archive.stem}")
    includes = [name for name in context._python_includes or () if not name.startswith(ARCHIVE)]
    # The worker puts each before those that it has: what comes first on the path is named last.
    context._python_includes = [*includes, *(f"{archive.stem}/{place}" for place in reversed(places))]


# ── where code is ───────────────────────────────────────────────────────────────────────────────────────────────────


def code_roots(pipeline: Pipeline) -> list[CodeRoot]:
    """The pipeline's own first, then in the order of `sys.path`."""
    foreign = _python_directories()
    whole = {*map(Path, pipeline.py_files), *_stage_directories(pipeline)}
    found: dict[Path, CodeRoot] = {}
    for entry in sys.path:
        path = Path(entry or os.getcwd()).absolute()
        if not {path, path.resolve()} & foreign and path.exists() and os.pathsep not in str(path):
            found.setdefault(path, CodeRoot(path, path in whole or path.is_file()))
    return sorted(found.values(), key=lambda root: not root.whole)


def _stage_directories(pipeline: Pipeline) -> set[Path]:
    """Where the files that declare stages are."""
    codes = (getattr(stage.function, "__code__", None) for stage in pipeline.stages.values())
    return {Path(code.co_filename).absolute().parent for code in codes if code is not None}


def _python_directories() -> set[Path]:
    names = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    places = [sysconfig.get_path(name) for name in names] + [site.getusersitepackages(), *site.getsitepackages()]
    stdlib = Path(sysconfig.get_path("stdlib"))
    version = f"{sys.version_info.major}{sys.version_info.minor}"
    found = {*map(Path, places), stdlib / "lib-dynload", stdlib.parent / f"python{version}.zip"}
    found |= {Path(entry) for entry in sys.path if {"site-packages", "dist-packages"} & set(Path(entry).parts)}
    if SparkContext._active_spark_context is not None:
        found.add(Path(SparkFiles.getRootDirectory()))
    return found | {path.resolve() for path in found}


# ── what of it is the job's ─────────────────────────────────────────────────────────────────────────────────────────


def hidden_names(root: Path) -> set[str]:
    """Modules and packages in `root` that the driver does not import: their names belong to Python, or to a module
    found earlier."""
    return {name for entry in _modules(root) if _is_taken(name := entry.stem, root)}


def code_entries(root: CodeRoot) -> list[Path]:
    """The modules and packages of a directory that workers need."""
    entries = [entry for entry in _modules(root.path) if not _is_taken(entry.stem, root.path)]
    if not root.whole:
        entries = [entry for entry in entries if entry.stem in sys.modules]
    spaces = [path for path in _subdirectories(root.path) if path not in entries and _is_loaded(path.name, root.path)]
    return sorted([*entries, *spaces])


def _modules(root: Path) -> Iterator[Path]:
    if root.is_dir():
        yield from (p for p in root.glob("*.py") if p.is_file())
        yield from (p for p in _subdirectories(root) if (p / "__init__.py").is_file())


def _subdirectories(root: Path) -> Iterator[Path]:
    yield from (p for p in root.iterdir() if p.is_dir() and p.name.isidentifier())


def _is_taken(name: str, root: Path) -> bool:
    if _is_loaded(name, root):
        return False
    return name in sys.modules or name in sys.stdlib_module_names


def _is_loaded(name: str, root: Path) -> bool:
    """Whether the module of that name has come from `root`."""
    module = sys.modules.get(name)
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    return any(Path(place).absolute().is_relative_to(root) for place in places if place)


def _without_hidden(root: Path) -> Path:
    """`root`, or a directory of links to everything in it that the driver can import."""
    hidden = {entry for entry in _modules(root) if _is_taken(entry.stem, root)}
    if not hidden:
        return root
    place = _scratch() / "0"
    place.mkdir()
    for entry in root.iterdir():
        if entry not in hidden:
            (place / entry.name).symlink_to(entry)
    return place


# ── the archive ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _archive(roots: Sequence[CodeRoot]) -> tuple[Path, list[str]]:
    """Everything in one archive, named by its content, and where in it the modules are, in the order of `roots`."""
    places, size = [], 0
    draft = _scratch() / "code.zip"
    with zipfile.ZipFile(draft, "w") as archive:
        for number, root in enumerate(roots):
            if root.path == PACKAGE.parent:
                continue  # Strobe itself is installed where workers run
            files = [root.path] if root.path.is_file() else sorted(_files(code_entries(root)))
            base = root.path.parent if root.path.is_file() else root.path
            for file in files:
                size += _add(archive, file, f"{number}/{file.relative_to(base)}")
            if files:
                places.append(f"{number}/{root.path.name}" if root.path.is_file() else str(number))
                _log.debug("%d files of %s go to the workers", len(files), root.path)
    if size > _LARGE:
        _log.warning("%d MB of code go to every executor: keep data out of packages", size // 1024 // 1024)
    digest = hashlib.sha256(draft.read_bytes()).hexdigest()[:16]
    return draft.rename(draft.with_name(f"{ARCHIVE}{digest}.zip")), places


def _add(archive: zipfile.ZipFile, file: Path, name: str) -> int:
    """Returns its size. Without times, so that the same code is the same archive."""
    try:
        data = file.read_bytes()
    except OSError as error:  # it has just gone, or is not ours
        _log.debug("%s does not go to the workers: %s", file, error)
        return 0
    entry = zipfile.ZipInfo(name)
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return len(data)


def _files(entries: Iterable[Path]) -> Iterator[Path]:
    """Below packages everything but caches, hidden files, environments and tables."""
    for entry in entries:
        if entry.is_file():
            yield entry
        elif entry.is_dir() and not any((entry / name).exists() for name in ("pyvenv.cfg", *_TABLES)):
            below = (p for p in entry.iterdir() if not p.name.startswith(".") and p.name != "__pycache__")
            yield from _files(p for p in below if not (p.is_symlink() and p.is_dir()))  # a link may lead back here


def _scratch() -> Path:
    """A directory that is kept until this process ends: workers and executors may read it at any time."""
    place = Path(tempfile.mkdtemp(prefix=ARCHIVE))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place

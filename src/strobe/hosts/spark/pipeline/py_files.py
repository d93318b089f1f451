"""`--py-files`: modules and packages that go along with a pipeline, wherever they are.

As with spark-submit: `.py`, `.zip` and `.egg` files, several with commas between them. A directory is taken, too: what
is in it can be imported. They come before everything else on the module path, in the order given, here and on workers.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from strobe.model.errors import Misuse

__all__ = ["use_py_files"]

_ARCHIVES = (".zip", ".egg")


def use_py_files(given: Sequence[str]) -> tuple[str, ...]:
    """Make them importable in this process. Returns the places that were put on `sys.path`."""
    paths = [_checked(word.strip()) for words in given for word in words.split(",") if word.strip()]
    modules = [path for path in paths if path.suffix == ".py"]
    places = [str(path) for path in paths if path.suffix != ".py"]
    if modules:
        places.insert(0, str(_laid_together(modules)))
    sys.path[:0] = places
    return tuple(places)


def _checked(word: str) -> Path:
    path = Path(word).absolute()
    usable = path.is_dir() or path.suffix in (".py", *_ARCHIVES)
    if "://" in word or not path.exists() or not usable:
        what = "there is no such file" if usable and "://" not in word else "it is not a .py, .zip or .egg file"
        raise Misuse(
            f"--py-files {word}: {what}.",
            untouched="Nothing was started.",
            next="Name files or directories of this machine; install other packages where the workers run.",
        )
    if path.is_file() and path.suffix in _ARCHIVES and not zipfile.is_zipfile(path):
        raise Misuse(f"--py-files {word}: it is not a zip archive.", untouched="Nothing was started.")
    return path


def _laid_together(modules: Sequence[Path]) -> Path:
    """Put single modules into a directory of their own, without what else lies beside them."""
    place = Path(tempfile.mkdtemp(prefix="strobe-py-files-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    for module in modules:
        shutil.copyfile(module, place / module.name)
    return place

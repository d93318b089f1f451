"""The file that the JVM's output goes to.

It is the job's log. But a file may need Spark while it is loaded, before it is known which job that is, and whether it
may run. Until then the output goes to a hidden file in the home directory, which becomes the log when the job is
claimed; the log of the run before stays beside it, under a number. If no job comes of it, nothing is left.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import tempfile
from pathlib import Path

__all__ = ["SparkOutput"]


class SparkOutput:
    def __init__(self) -> None:
        self._early: Path | None = None

    def before_any_job(self, home: Path) -> Path | None:
        """A file that can become a log below `home`. None if there can be none."""
        try:
            made = not home.exists()
            home.mkdir(parents=True, exist_ok=True)
            file, name = tempfile.mkstemp(prefix=".spark-", suffix=".log", dir=home.absolute())
        except OSError:
            return None
        os.close(file)
        self._early = Path(name)
        atexit.register(self._remove, os.getpid(), home.absolute() if made else None)
        return self._early

    def become(self, log: Path) -> None:
        """The job is known: this is its log."""
        early, self._early = self._early, None
        if early is None:
            return
        with contextlib.suppress(OSError):  # then it stays where it is, and goes when this process ends
            if log.exists():
                numbers = (log.with_name(f"{log.name}.{n}") for n in itertools.count(1))
                log.rename(next(path for path in numbers if not path.exists()))
            early.rename(log)

    def _remove(self, maker: int, made: Path | None) -> None:
        if os.getpid() != maker:  # a forked child has a copy of this object, but the files are its parent's
            return
        with contextlib.suppress(OSError):
            if self._early is not None:
                self._early.unlink(missing_ok=True)
            if made is not None:
                made.rmdir()  # unless something is in it by now

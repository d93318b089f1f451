"""The home that the page shows: a directory, or a bucket that jobs keep their checkpoints in.

A bucket is shown through a directory that exists for as long as the page does, and notes for each job of the bucket
that its checkpoints are there: whoever reads homes then finds them, the `strobe` command included. Nothing runs in such
a home, and nothing can be ordered.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from strobe.model.errors import Misuse, StrobeError
from strobe.store.layout import JOBS
from strobe.store.places import note_place, open_objects
from strobe.store.s3 import S3Store
from strobe.store.scheme import is_s3

__all__ = ["HomePlace"]

_FRESH: Final = 10.0  # seconds for which a list of a bucket's jobs counts


class HomePlace:
    """Safe to use from several threads."""

    def __init__(self, home: Path | str) -> None:
        """Misuse if it is not a home: nothing is made there by looking."""
        self._bucket: S3Store | None = None
        self._lock = threading.Lock()
        self._until = 0.0
        if is_s3(str(home)):
            objects = open_objects(str(home))
            assert isinstance(objects, S3Store)
            self._bucket = objects
            self.shown = objects.describe()
            self._scratch = tempfile.TemporaryDirectory(prefix="strobe-ui-")
            self.directory = Path(self._scratch.name)
            if not self._note_jobs():
                raise Misuse(
                    f"No job keeps its checkpoints at {self.shown}.",
                    untouched="Nothing was started.",
                    next=f"Name the place that `strobe run --store` was given: what is above {JOBS}/ in the bucket.",
                )
        else:
            self.directory = check_home(Path(home))
            self.shown = str(self.directory)

    @property
    def in_bucket(self) -> bool:
        return self._bucket is not None

    def refresh(self) -> None:
        """Look for new jobs in the bucket, now and then; if the store cannot be asked, nothing changes."""
        with self._lock:
            if self._bucket is None or time.monotonic() < self._until:
                return
            self._until = time.monotonic() + _FRESH
        try:
            self._note_jobs()
        except StrobeError:
            return

    def _note_jobs(self) -> tuple[str, ...]:
        assert self._bucket is not None
        names = self._bucket.folders(f"{JOBS}/")
        (self.directory / JOBS).mkdir(exist_ok=True)
        for name in names:
            note_place(self.directory, name, self.shown)
        self._until = time.monotonic() + _FRESH
        return names


def check_home(home: Path) -> Path:
    if not home.is_dir():
        raise Misuse(
            f"There is no home directory {home}.",
            untouched="Nothing was started.",
            next="Name one with --home DIR, or run a pipeline first: `strobe run FILE` makes it.",
        )
    if not (home / JOBS).is_dir():
        raise Misuse(
            f"{home} is not a home directory of Strobe: it has no {JOBS!r} in it.",
            untouched="Nothing was started.",
            next="Name the directory that `strobe run --home` has; by default that is .strobe where the job was run.",
        )
    return home.absolute()

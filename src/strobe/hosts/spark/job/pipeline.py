"""A pipeline that can be started: what users know as `strobe.Pipeline`.

A declared pipeline knows nothing of what runs it (`pipeline.pipeline`); here is the one method that does.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

from strobe.hosts.spark.job.job import Job, start_job
from strobe.hosts.spark.pipeline import pipeline
from strobe.hosts.spark.pipeline.py_files import use_py_files
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.model.errors import Misuse
from strobe.model.suggest import did_you_mean

__all__ = ["Pipeline"]

_MORE: Final = ("base", "spark")  # what `start_job` takes besides


class Pipeline(pipeline.Pipeline):
    """A graph of stages, which are joined by channels, as one job."""

    def run(
        self,
        home: str | None = None,
        *,
        master: str | None = None,
        snapshot: str | None = None,
        claim_mode: str = "no-claim",
        allow_non_restored_state: bool = False,
        partitions: int | Mapping[str, int] | None = None,
        py_files: str | Iterable[str] = (),
        root: str | None = None,
        sinks_from: str | Iterable[str] = (),
        allow_changed_state: str | Iterable[str] = (),
        verify: bool = False,
        signed_by: str | None = None,
        **options: Any,
    ) -> Job:
        """Start the pipeline, or resume it where it was left, or restore it from `snapshot` (a directory, JOB, or
        JOB/ID). Returns when every stage runs. `partitions` rescales all stages with state, or those named by uid.
        `py_files` are modules and packages that go to Spark's workers. `root` is the Merkle root that the snapshot must
        have; sinks may be copied from `sinks_from`. `allow_changed_state` names stages that may go on although their
        code means something else than their state. `verify` reads every byte of the snapshot before anything is done.
        `signed_by` is the public key, a PEM file or env:NAME, that the snapshot must be signed by.
        """
        self._check_run(home=home, options=options)
        self.py_files = (*self.py_files, *use_py_files(_several(py_files)))
        restore = RestoreOptions(
            snapshot=snapshot,
            claim_mode=claim_mode,
            allow_non_restored_state=allow_non_restored_state,
            partitions=None if isinstance(partitions, Mapping) else partitions,
            stage_partitions=dict(partitions) if isinstance(partitions, Mapping) else {},
            root=root,
            signed_by=signed_by,
            sinks_from=_several(sinks_from),
            allow_changed_state=_several(allow_changed_state),
            verify=verify,
        )
        return start_job(self, home=home, master=master, restore=restore, **options)

    def _check_run(self, home: Any, options: Mapping[str, Any]) -> None:
        for name in options:
            if name not in _MORE:
                known = [*inspect.signature(self.run).parameters, *_MORE]
                known = [each for each in known if each != "options"]
                raise Misuse(
                    f"Pipeline {self.name!r}: run() does not know {name}=.",
                    untouched="Nothing was started.",
                    next=f"{did_you_mean(name, known)}It takes: {', '.join(known)}.",
                )
        for name, place in (("home", home), ("base", options.get("base"))):
            if place is not None and not isinstance(place, str | os.PathLike):
                raise Misuse(
                    f"Pipeline {self.name!r}: {name}={place!r} is not a directory's path.",
                    untouched="Nothing was started.",
                )


def _several(given: str | Iterable[str]) -> tuple[str, ...]:
    """One text is one of them, not its letters."""
    listed = (given,) if isinstance(given, str | os.PathLike) else given
    return tuple(os.fspath(one) for one in listed)

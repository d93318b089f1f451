"""One entry of the corpus: the pipeline in the file, and what the file says about its input and output."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import strobe
from strobe.hosts.spark.pipeline.loading import load_pipeline
from strobe.hosts.spark.pipeline.pipeline import StageSpec
from strobe.hosts.spark.pipeline.user_lines import MODULE

__all__ = ["ENTRIES", "Entry", "load", "names"]

ENTRIES: Final = Path(__file__).parent / "entries"
INPUT: Final = "CORPUS_IN"  # where an entry finds its input
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    name: str
    pipeline: strobe.Pipeline
    sources: Mapping[str, str]
    steps: Sequence[tuple[str, Sequence[Any]]]
    counts: Mapping[str, Callable[[Row], bool]]
    endless: Mapping[str, Sequence[int]]
    fixed: Sequence[str]

    @property
    def outputs(self) -> dict[str, StageSpec]:
        """The stages whose tables are compared."""
        return {uid: spec for uid, spec in self.pipeline.stages.items() if isinstance(table_of(spec), strobe.Sink)}


def table_of(spec: StageSpec) -> strobe.DeltaSink | strobe.FileSink | None:
    """Of several sinks of a stage, the first is compared."""
    found = [sink for sink in spec.sinks if isinstance(sink, strobe.DeltaSink | strobe.FileSink)]
    return found[0] if found else None


def names() -> list[str]:
    return sorted(path.stem for path in ENTRIES.glob("*.py") if not path.stem.startswith("_"))


def load(name: str, directory: Path) -> Entry:
    """Anew for each run, as each `strobe run` does: sinks belong to one job. `directory`: where its input is."""
    os.environ[INPUT] = str(directory)
    pipeline = load_pipeline(str(ENTRIES / f"{name}.py"))
    said = vars(sys.modules[MODULE])
    pipeline.restart = strobe.RestartPolicy(attempts=0)
    return Entry(
        name=name,
        pipeline=pipeline,  # type: ignore[arg-type]
        sources=said["SOURCES"],
        steps=said["STEPS"],
        counts=said.get("COUNTS", {}),
        endless=said.get("ENDLESS", {}),
        fixed=said.get("FIXED", ()),
    )

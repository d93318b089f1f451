"""Where a stage's sinks write, and by which key, noted so that a resumed job can say what has changed.

A sink that is given another place goes on there with the next batch. That is allowed. But often somebody has only
started the job from another directory, so the user is told. The same for another key: rows that are in the table were
written by the old one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from strobe.hosts.spark.home.moved import Homes
from strobe.hosts.spark.pipeline.pipeline import StageSpec
from strobe.model.cut import Json

__all__ = ["changed_keys", "changed_sinks", "sink_keys", "sink_places"]


def sink_places(spec: StageSpec, base: Path) -> dict[str, Json]:
    """The place of each sink, by its own uid or its number: a path in full, or what the sink says of itself."""
    found: dict[str, Json] = {}
    for index, sink in enumerate(spec.sinks):
        path = getattr(sink, "path", None)
        local = isinstance(path, str | Path) and "://" not in str(path)
        found[sink.uid or str(index)] = os.path.normpath(base / str(path)) if local else sink.describe()
    return found


def changed_sinks(before: Json, after: Json, homes: Homes) -> Iterator[str]:
    """What is not as it was, in sentences. What moved along with the job's home has not changed."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return
    for name, was in before.items():
        now = after.get(name)
        if now is None:
            yield f"it no longer writes to {was}; what is there stays"
        elif now != was and not (str(was).startswith("/") and str(homes.place(str(was))) == now):
            yield f"it wrote to {was}, and writes to {now} from now on; what is there stays, and is not copied"
    for name, now in after.items():
        if name not in before:
            yield f"it writes to {now} as well, from now on: not what it has written before"


def sink_keys(spec: StageSpec) -> dict[str, Json]:
    """The key of each sink that may have one, by its own uid or its number."""
    keys = ((sink.uid or str(index), getattr(sink, "key", None)) for index, sink in enumerate(spec.sinks))
    return {name: list(key) for name, key in keys if isinstance(key, tuple)}


def changed_keys(before: Json, after: Json) -> Iterator[str]:
    """What is not as it was, in sentences."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return
    for name, was in before.items():
        now = after.get(name)
        if not isinstance(was, list) or not isinstance(now, list) or now == was:
            continue
        if not now:
            yield f"rows are added to sink {name} from now on, and none replaces another: its key was {_listed(was)}"
            continue
        found = f"written by {_listed(was)} so far" if was else "added without a key so far"
        yield (
            f"the key of sink {name} is {_listed(now)} from now on, and its rows were {found}: where several of "
            "them have one key, all of them stay, and each later row with it replaces them all"
        )


def _listed(key: list[Json]) -> str:
    return ", ".join(map(str, key))

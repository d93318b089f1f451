"""What people have released: a file of lines in the job's home that outlives its runs.

A release says that everything up to a snapshot may become visible, whatever its invariants say. It is durable before
anything follows from it, and it is never taken back: ids of snapshots are never used twice, so it can only ever mean
what was complete when it was said.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from strobe.model.ids import SnapshotId
from strobe.store.layout import JobLayout
from strobe.store.line_file import append_line, read_lines
from strobe.store.manifest import Manifest

__all__ = ["HOLD", "Release", "append_release", "holds_back", "read_releases", "released_up_to"]

HOLD: Final = "hold"  # in a manifest: the invariants for which its parts wait


def holds_back(manifest: Manifest) -> bool:
    """Whether the parts that it names wait for a verdict."""
    return bool(manifest.extra.get(HOLD))


@dataclass(frozen=True, slots=True)
class Release:
    """`by` is whoever said it, as their machine knows them; `parts` were held then, and are not any more."""

    snapshot: SnapshotId
    by: str
    at: str
    parts: int


_decode = msgspec.json.Decoder(Release).decode


def append_release(home: Path, job: str, release: Release) -> None:
    """Note a release, for whoever owns the job. Durable on return."""
    append_line(home / JobLayout(job).releases, msgspec.json.encode(release))


def read_releases(home: Path, job: str) -> tuple[Release, ...]:
    """Oldest first; what cannot be read is passed over, and so is not released."""
    found = []
    for line in read_lines(home / JobLayout(job).releases):
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            found.append(_decode(line))
    return tuple(found)


def released_up_to(home: Path, job: str) -> SnapshotId:
    """0 if nothing was ever released."""
    return max((release.snapshot for release in read_releases(home, job)), default=SnapshotId(0))

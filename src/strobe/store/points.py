"""Every step at which the store can be interrupted, by name, for tests that kill the process exactly there.

Stores and sessions take a function `on_point` and call it with a name from this table. It may raise, or never return;
what must hold afterwards is the same everywhere: earlier snapshots are sound, and nothing is half visible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

__all__ = ["POINTS", "OnPoint", "no_point"]

OnPoint: TypeAlias = Callable[[str], None]

POINTS: Final[Mapping[str, str]] = {
    "store.file.written": "a file's bytes are in a temporary file",
    "store.file.synced": "the bytes of all files of a batch are durable, none has a name yet",
    "store.file.visible": "a file has got its name; its directory is not durable yet",
    "store.file.durable": "all files of a batch and their directories are durable",
    "store.file.doomed": "a file is about to be deleted",
    "store.file.deleted": "a file's name is gone",
    "store.blob.written": "one blob of an upload is written, the next is not",
    "store.upload.durable": "all blobs of an upload are durable, nobody knows",
    "store.manifest.before": "all blobs are there, the manifest is about to be written",
    "store.manifest.after": "the manifest is durable, nobody has been told",
    "store.dispose.before": "a snapshot is about to be disposed of",
    "store.dispose.manifest": "its manifest is gone, its blobs are not",
    "store.dispose.after": "what only it needed is gone",
    "store.blobs.doomed": "blobs that nobody needs are known and still there",
}


def no_point(point: str) -> None:
    """The hook that does nothing."""

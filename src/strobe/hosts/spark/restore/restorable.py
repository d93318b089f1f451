"""Whether a checkpoint can still be restored in its job's home: asked for each one that `strobe checkpoints` shows.

A checkpoint leaves rows where they are, in channels and tables. Strobe's own trimming keeps what a retained one needs;
somebody else's VACUUM, or a removed directory, may not have.
"""

from __future__ import annotations

from pathlib import Path

from strobe.hosts.spark.channel.log import LOG, ChannelLog
from strobe.hosts.spark.connectors.delta import restore as delta_restore
from strobe.hosts.spark.connectors.files import restore as file_restore
from strobe.hosts.spark.home.moved import Homes, relocate_position
from strobe.hosts.spark.restore.channels import why_not_held
from strobe.model.cut import Json
from strobe.model.errors import StrobeError
from strobe.store.manifest import Manifest

__all__ = ["why_not_restorable"]


def why_not_restorable(manifest: Manifest, home: Path) -> str | None:
    """What is missing, as a sentence; None if everything is there. Looks for files by name, not at their contents."""
    for name, record in manifest.channels.items():
        if record.barrier is None or record.content:
            continue
        path = home / (record.location or "")
        if not (path / LOG).is_dir():
            return f"Channel {name} is gone."
        needed = min((flight.after for flight in record.in_flight.values()), default=record.barrier)
        try:
            why = why_not_held(ChannelLog(path, torn_after=record.barrier), record, needed)
        except StrobeError as error:
            why = error
        if why is not None:
            return why.what
    homes = Homes.of(manifest.extra.get("home"), home)
    for sink in manifest.sinks.values():
        try:
            why_not = _why_not_there(relocate_position(sink.position, homes))
        except StrobeError as error:
            why_not = error.what
        if why_not is not None:
            return why_not
    return None


def _why_not_there(position: Json) -> str | None:
    """Why a sink's place is not as it was at the snapshot, if it is a place that Strobe can look at."""
    table = delta_restore.recorded(position)
    if table is not None:
        problem = delta_restore.why_unreachable(*table)
        return None if problem is None else problem.what
    files = file_restore.recorded(position)
    return f"The files in {files.path} are gone." if files is not None and not files.path.is_dir() else None

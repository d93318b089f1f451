"""What a writer must know of others who change its table as well: people who compact it, clean it up, redefine it.

A channel has one writer and needs none of this. The table of a sink belongs to those who read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from strobe.hosts.spark.channel.log import LOG, ChannelLog, DataFile
from strobe.model.errors import Failed
from strobe.model.ids import Timeline

__all__ = ["check_definition", "let_go_by_others", "tell_last_batch"]


def tell_last_batch(log: ChannelLog, timeline: Timeline, app: str) -> None:
    """The last batch as the table's own mark has it, which outlives a clean-up of the log."""
    try:
        told = DeltaTable(str(log.path)).transaction_version(app)
    except (DeltaError, OSError) as error:
        said = str(error).partition("\n")[0].rstrip(".")
        raise Failed(f"Table {log.path} cannot be read: {said}.", untouched="It is unchanged.") from error
    if told is not None:
        log.tell(timeline, told)


def let_go_by_others(log: ChannelLog, path: Path, files_at: Callable[[int], Sequence[DataFile]]) -> bool:
    """Whether the table can be read without this missing file: it was compacted away or deleted, and then vacuumed; or
    it is an entry of a log that was cleaned up."""
    if path.parent == log.path / LOG:
        return not log.is_whole
    named = {log.path / f.path for f in files_at(log.head)}
    return path not in named and not any(path in file.parents for file in named)


def check_definition(log: ChannelLog, defined: int) -> None:
    """Failed if somebody else has changed columns, properties or protocol after version `defined`."""
    if log.redefined > defined:
        raise Failed(
            f"Version {log.redefined} of {log.path}, which is not of this job, has changed the definition of the table "
            "(columns, properties or protocol) while the job was writing.",
            untouched="Nothing was written after it.",
            next="Start the job again: it then looks at the table again, and says if it cannot write to it.",
        )

"""Rewriting the positions in a stage's Spark checkpoint, in a copy that nothing uses yet.

Spark's offset log has one line per source of the plan, by place. A channel's line names its channel, so the lines can
be put into another order, and lines for other channels added or taken away, when a file has changed: Spark then finds
each source at its place again. All readers of one channel stand at one version, since the agent plans for all of them.

While a restore has not filled its channels yet, a line carries the snapshot's position under another name, which no
reader takes for a version.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from strobe.hosts.shared.durable import write_durably
from strobe.model.errors import Damaged
from strobe.model.ids import NodeId

__all__ = ["add_sources", "mark_offsets", "rearrange_offsets", "rename_channels", "renumber_offsets", "rewrite_lines"]

Offset: TypeAlias = dict[str, object]
_NO_OFFSET = "-"  # as Spark writes it
_OLD = "restored"  # instead of "version": a position that is still the snapshot's


def rename_channels(checkpoint: Path, names: Mapping[NodeId, NodeId]) -> None:
    """Rename channels in the offsets: channels have the names of their producers, and these have changed."""

    def rename(offset: Offset) -> Offset:
        name = NodeId(str(offset["channel"]))
        return {**offset, "channel": names.get(name, name)}

    if names:
        rewrite_lines(checkpoint, lambda lines: [_changed(line, rename) for line in lines])


def mark_offsets(checkpoint: Path, only: Collection[NodeId] | None = None) -> None:
    """Mark positions on channels (only on those in `only`) as the snapshot's, until `renumber_offsets`."""

    def mark(offset: Offset) -> Offset:
        if "version" not in offset or (only is not None and offset["channel"] not in only):
            return offset
        return {"channel": offset["channel"], _OLD: offset["version"]}

    rewrite_lines(checkpoint, lambda lines: [_changed(line, mark) for line in lines])


def renumber_offsets(checkpoint: Path, versions: Mapping[NodeId, Callable[[int], int]]) -> None:
    """Turn marked positions into versions, when the channels have been filled. `versions` says for each filled channel
    where a position of the snapshot is now. The others are new and begin at 0."""

    def renumber(offset: Offset) -> Offset:
        if _OLD not in offset:
            return offset
        new = versions.get(NodeId(str(offset["channel"])))
        return {"channel": offset["channel"], "version": 0 if new is None else new(int(str(offset[_OLD])))}

    rewrite_lines(checkpoint, lambda lines: [_changed(line, renumber) for line in lines])


def rearrange_offsets(checkpoint: Path, sources: Sequence[NodeId], starts: Mapping[NodeId, int]) -> None:
    """One line per source of the new plan, all of which are channels. `starts` is for those that are new."""

    def rearrange(lines: list[str]) -> list[str]:
        held = {str(json.loads(line)["channel"]): line for line in lines if line.startswith("{")}
        fresh = {uid: json.dumps({"channel": uid, "version": starts.get(uid, 0)}) for uid in sources}
        return [held.get(uid, fresh[uid]) for uid in sources]

    rewrite_lines(checkpoint, rearrange)


def add_sources(checkpoint: Path, count: int) -> None:
    """Make it `count` sources: those that are new have no offset yet."""
    rewrite_lines(checkpoint, lambda lines: [*lines, *[_NO_OFFSET] * (count - len(lines))])


def rewrite_lines(checkpoint: Path, change: Callable[[list[str]], list[str]]) -> None:
    """Change the lines of each entry of the log: one line for each source of the plan."""
    directory = checkpoint / "offsets"
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        if not path.name.isdecimal():
            continue
        try:
            lines = path.read_text().splitlines()
            changed = [*lines[:2], *change(lines[2:])]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Damaged(
                f"Spark's checkpoint file {path} cannot be read: {error}.",
                untouched="Nothing was changed.",
                next="Restore another snapshot.",
            ) from error
        if changed != lines:
            write_durably(path, "\n".join(changed))


def _changed(line: str, change: Callable[[Offset], Offset]) -> str:
    if not line.startswith("{"):
        return line
    offset = json.loads(line)
    return json.dumps(change(offset)) if "channel" in offset and len(offset) == 2 else line

"""Whose a table or a directory is: two jobs never write one.

A sink tells the batches that it has written from others by marks in the table, and a mark names a batch by its number:
another job's batch of the same number would be taken for its own, and its rows would be lost. So whoever writes to a
place notes there who it is, once, in a file that only one can make, and everybody else is refused before anything is
written.

A job is known by an *identity* that is made up when it first writes: a job of the same name in another home is another
job, one whose home was moved is the same, and so is one that goes on after a restore. A copy of a home, while the
original is still there, is another; it may write to what was copied along with it.

A system outside cannot be copied along: there a copy of a home may not write at all while the original is still there
(`check_no_copy`). Where nobody can see the original, because it was moved or is on another machine, the names of starts
tell which of the two wrote last (`starts`).
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from strobe.hosts.shared.durable import write_durably
from strobe.hosts.spark.connectors.base import SinkContext
from strobe.hosts.spark.connectors.starts import check_start, follow, last_start
from strobe.model.errors import Damaged, Failed, Misuse, StrobeError
from strobe.store.small_files import read_as, read_small

__all__ = ["OWNER", "Claim", "check_no_copy", "claim", "why_not_mine"]

OWNER: Final = "owner"  # no suffix: others read a directory of JSON files by that


@dataclass(frozen=True)
class Claim:
    """What stands at the place: the job's identity and name, the stage that writes, and where the identity is kept."""

    identity: str
    job: str
    stage: str
    kept: str

    @property
    def home(self) -> str:
        """The home directory, as far as it can be told from where the job keeps its identity."""
        job = Path(self.kept).parent
        return str(job.parent.parent if job.parent.name == "jobs" else job)

    @property
    def still_there(self) -> bool:
        """Whether the file with the identity still exists; one that cannot be read exists, too."""
        try:
            return _read_identity(Path(self.kept)) == self.identity
        except (Damaged, ValueError):
            return "\0" not in self.kept


def claim(place: Path, context: SinkContext, what: str, *, written: bool) -> None:
    """Note in the directory `place` that the stage of `context` writes there; Misuse if somebody else does. `what` is
    the sink in words. `written`: the place has batches of the context's timeline, whoever wrote them."""
    mine = Claim(_identity(context.identity_file), context.job, str(context.stage), _real(context.identity_file))
    try:
        place.mkdir(parents=True, exist_ok=True)
        if not _note(place, mine, replace=False):
            problem = why_not_mine(place, context, what, written=written)
            if problem is not None:
                raise problem
        follow(place, context.identity_file, context.incarnation, what)
        if _read(place) != mine:
            _note(place, mine, replace=True)
    except OSError as error:
        raise Failed(
            f"{what} cannot be opened: whose it is cannot be noted in {place}: {error.strerror or error}.",
            untouched="Nothing was written.",
            next="Check that the directory can be written to and has room.",
        ) from error


def why_not_mine(place: Path, context: SinkContext, what: str, *, written: bool) -> StrobeError | None:
    """Why the stage of `context` may not write there; None if it may. Touches nothing."""
    found = _read(place)
    if found is None:
        return None
    who = f"stage {found.stage!r} of job {found.job!r}"
    mine = _read_identity(context.identity_file)
    if found.identity != mine or found.job != context.job:
        return _another_job(place, found, what, who)
    kept = _real(context.identity_file)
    copied = found.kept != kept and found.still_there and not os.path.samefile(found.kept, kept)
    if copied and not _is_copy(place, found, kept):
        return _another_job(place, found, what, f"{who}, of which this is a copy,")
    if found.stage != context.stage and written:
        return Misuse(
            f"{what} of stage {context.stage!r} was written by stage {found.stage!r} of this job: the batches of the "
            "two would be taken for each other's.",
            untouched="Nothing was written.",
            next=f"Give the sink back to {found.stage!r}, or give {context.stage!r} another path.",
        )
    try:
        check_start(last_start(place), context.identity_file, context.incarnation, what)
    except Misuse as error:
        return error
    return None


def check_no_copy(kept: Path, what: str) -> None:
    """Misuse if `kept`, the file with the name that a system outside knows this job by, was copied with its home, and
    the original is still there. `what` is the sink in words."""
    note = kept.with_name(f"{kept.name}-at")
    here, before = _real(kept), _read_identity(note)
    if before is not None and before != here and _is_original(Path(before), kept):
        raise Misuse(
            f"{what} is written by the job in the home whose {before} is still there. This home is a copy of that one: "
            "the batches of the two would be taken for each other's.",
            untouched="Nothing was written.",
            next="Run the job with that home, or delete it if it is not to run again. To have two jobs, give this one "
            f"another table or topic, and delete {kept}.",
        )
    if before != here:
        _write(note, here, replace=True)


def _is_original(before: Path, kept: Path) -> bool:
    mine = _read_identity(kept)
    return mine is not None and _read_identity(before) == mine and not os.path.samefile(before, kept)


def _is_copy(place: Path, found: Claim, kept: str) -> bool:
    """Whether the place was copied along with the home: the original's is at the same place beside the original's home,
    and is another directory."""
    beside = os.path.relpath(os.path.realpath(place), os.path.dirname(kept))
    original = Path(os.path.normpath(os.path.join(os.path.dirname(found.kept), beside)))
    theirs = _read(original)
    return theirs is not None and theirs.identity == found.identity and not os.path.samefile(original, place)


def _another_job(place: Path, found: Claim, what: str, who: str) -> Misuse:
    if found.still_there:
        next = "Give this sink another path, or run the job with another --base DIR, which moves every relative path."
    else:
        next = (
            "That job is no longer there. To start from the beginning, delete or move away what is at "
            f"{place.parent} too: its rows would come again. Or give this sink another path."
        )
    return Misuse(
        f"{what} belongs to {who} in the home {found.home}: two jobs never write to one place.",
        untouched="Nothing was written.",
        next=next,
    )


def _identity(path: Path) -> str:
    """The identity of this job; made when first asked for."""
    found = _read_identity(path)
    if found is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, uuid.uuid4().hex, replace=False)
        found = _read_identity(path)
        assert found is not None
    return found


def _read_identity(path: Path) -> str | None:
    try:
        return read_small(path).decode(errors="replace").strip() or None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Damaged(
            f"{path}, which tells this job from others, cannot be read: {error.strerror or error}.",
            untouched="Nothing was written.",
            next="Put back a copy of it.",
        ) from error


def _read(place: Path) -> Claim | None:
    path = place / OWNER
    try:
        return read_as(path, Claim)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise Damaged(
            f"{path}, which says whose the table is, cannot be read: {error}.",
            untouched="Nothing was written.",
            next="Delete that file if no other job writes there.",
        ) from error


def _note(place: Path, claim: Claim, *, replace: bool) -> bool:
    return _write(place / OWNER, json.dumps(asdict(claim), indent=1), replace=replace)


def _write(path: Path, text: str, *, replace: bool) -> bool:
    """Write the file; False if it exists and must not be replaced. Others may claim the place at the same moment."""
    return write_durably(path, text, fresh=path.with_name(f".{path.name}.{uuid.uuid4().hex}"), replace=replace)


def _real(path: Path) -> str:
    return os.path.realpath(path)

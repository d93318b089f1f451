"""Parts of sinks that invariants hold back: which snapshots they wait for, what people see, how they are released.

A manifest whose parts wait for a verdict says so under `hold`, with the names of the invariants that were to be asked.
What is held back is named by such a manifest and not known to be let go: not released, and no commit of it has begun.
So the disk alone says what is held, and it can be released without a driver. The process that releases owns the job
at that moment: the note can come neither too late for a driver that starts, nor twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from strobe.hosts.shared.clock import utc_now
from strobe.hosts.spark import crash_points
from strobe.hosts.spark.commit.ledger import PartState, named_handles, read_ledgers
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.snapshot.metrics import HeldStatus
from strobe.model.errors import Misuse, StrobeError
from strobe.model.ids import SnapshotId
from strobe.model.invariants import Outcome
from strobe.store.manifest import Manifest
from strobe.store.places import checkpoints_of
from strobe.store.releases import Release, append_release, holds_back, read_releases, released_up_to
from strobe.store.verdicts import read_verdicts

if TYPE_CHECKING:
    from strobe.hosts.spark.commit.commits import Commits
    from strobe.hosts.spark.commit.work import SinkWork

__all__ = [
    "explain_held", "held_on_disk", "not_held", "not_judged_any_more", "open_commits", "release", "release_offline",
]  # fmt: skip

_log = logging.getLogger("strobe.sinks")
_SHOWN: Final = 10


def explain_held(job: str, held: HeldStatus) -> str:
    """One sentence or two: what is held back, why, and how to go on."""
    if held.snapshot is None:
        return f"{held.judging} snapshots wait for their verdicts; until then none of their rows becomes visible."
    of = f"snapshot {held.snapshot}" if held.newest == held.snapshot else f"snapshots {held.snapshot} to {held.newest}"
    why = f": {held.reason}" if held.reason else ", which was not judged yet"
    go = f"`strobe release {job} {held.snapshot}` lets it go, and what follows if that holds"
    if held.newest != held.snapshot:
        go += f" (`strobe release {job} {held.newest}`: all of it)"
    back = (
        f"`strobe run -s {job}/{held.good}` goes back to the last good snapshot and throws it away"
        if held.good is not None
        else "no snapshot from before is left to go back to"
    )
    return f"Held: {held.parts} part(s) of {of}{why}. Nothing of it is visible, and nothing is lost. {go}; {back}."


def held_on_disk(home: Path, job: str) -> HeldStatus | None:
    """What is held back, without the job. None if nothing is."""
    waiting, parts = _waiting_on_disk(home, job)
    if not waiting:
        return None
    oldest = waiting[0]
    wrong = [
        v
        for v in read_verdicts(home, job)
        if v.snapshot == oldest and v.outcome not in (Outcome.HOLDS, Outcome.SKIPPED)
    ]
    at, why = (wrong[-1].at, wrong[-1].sentence) if wrong else ("", "")
    good = max((s for s in checkpoints_of(home, job).list() if s < oldest), default=None)
    return HeldStatus(oldest, waiting[-1], parts, at, why, good=good)


def open_commits(
    commits: Commits,
    works: Sequence[SinkWork],
    manifests: Iterable[Manifest],
    home: JobHome,
    told: Callable[[Release], None],
) -> None:
    """At a start. What was released while no driver ran becomes visible now, and `told` is called."""
    releases = read_releases(home.home, home.job)
    newest = max(releases, key=lambda each: each.snapshot, default=None)
    released = SnapshotId(0) if newest is None else newest.snapshot
    waiting = [e.part.snapshot for work in works for e in work.in_doubt if e.state is not PartState.DECIDED]
    commits.open(works, manifests, released)
    if newest is not None and any(snapshot <= released for snapshot in waiting):
        told(newest)


def release(commits: Commits, home: JobHome, told: Callable[[Release], None], snapshot: SnapshotId, by: str) -> Release:
    """Release what a job that runs here holds up to this snapshot: it becomes visible, in the background."""
    said: list[Release] = []

    def note(parts: int) -> None:
        said.append(Release(snapshot, by, utc_now(), parts))
        home.check_owner()
        append_release(home.home, home.job, said[-1])

    commits.release(snapshot, note)
    _log.info("what is held up to snapshot %d is released, by %s", snapshot, by)
    told(said[-1])
    return said[-1]


def release_offline(home: Path, job: str, snapshot: SnapshotId, by: str) -> Release:
    """Note the release of a job that does not run: its next start takes it. Misuse if it runs, or nothing waits."""
    claim = JobHome(home, job)
    claim.claim(lambda reason: None)
    try:
        waiting, parts = _waiting_on_disk(home, job, upto=snapshot)
        if not waiting or (snapshot not in waiting and snapshot > claim.record.snapshot):
            raise not_held(snapshot, _waiting_on_disk(home, job)[0])
        # A savepoint, or one that is gone, names nothing of its own: what was held before it is meant.
        release = Release(waiting[-1], by, utc_now(), parts)
        append_release(claim.home, job, release)
        crash_points.point("release.noted")
        return release
    finally:
        claim.release()


def not_held(snapshot: SnapshotId, waiting: Sequence[SnapshotId]) -> Misuse:
    if not waiting:
        return Misuse("Nothing is held.", untouched="Nothing was changed.", next="`strobe checks JOB` shows verdicts.")
    shown = ", ".join(map(str, waiting[:_SHOWN])) + (f", … {waiting[-1]}" if len(waiting) > _SHOWN else "")
    if snapshot < waiting[0]:
        what = f"Nothing is held up to snapshot {snapshot}."
    else:
        what = f"There is no complete snapshot {snapshot} whose parts are held."
    return Misuse(what, untouched="Nothing was changed.", next=f"Held are: {shown}. A release takes all up to it.")


def not_judged_any_more(job: str, held: Iterable[SnapshotId]) -> Misuse:
    numbers = sorted(held)
    return Misuse(
        f"Parts of snapshot{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:_SHOWN]))} are held, but the "
        "file no longer has an invariant with on_violation='hold': nobody could say whether they may become visible.",
        untouched="Nothing was started, and they are held as they were.",
        next=f"Let them go with `strobe release {job} {numbers[-1]}`, go back with `strobe run -s`, or put the "
        "invariant back.",
    )


def _waiting_on_disk(home: Path, job: str, upto: SnapshotId | None = None) -> tuple[tuple[SnapshotId, ...], int]:
    """The snapshots whose parts are held back, oldest first, and how many parts; with `upto`, only up to there."""
    entries = {
        entry.handle: entry
        for ledger in read_ledgers(home, job).values()
        for entry in ledger.entries
        if entry.state in (PartState.PREPARED, PartState.HELD)
    }
    named: dict[SnapshotId, set[str]] = {}
    for entry in entries.values():
        if entry.state is PartState.HELD and entry.decided_by is not None:
            named.setdefault(entry.decided_by, set()).add(entry.handle)
    for manifest in _manifests(home, job) if entries else ():
        if holds_back(manifest):
            handles = {h for each in named_handles(manifest).values() for h in each if h in entries}
            named.setdefault(manifest.snapshot, set()).update(handles)
    released = released_up_to(home, job)
    gone = {handle for snapshot, handles in named.items() if snapshot <= released for handle in handles}
    waiting = {
        snapshot: handles - gone
        for snapshot, handles in named.items()
        if snapshot > released and (upto is None or snapshot <= upto) and handles - gone
    }
    return tuple(sorted(waiting)), len({handle for handles in waiting.values() for handle in handles})


def _manifests(home: Path, job: str) -> Iterable[Manifest]:
    store = checkpoints_of(home, job)
    for snapshot in store.list():
        try:
            yield store.load(snapshot)
        except StrobeError:  # a damaged one names nothing that could be let go by it
            continue

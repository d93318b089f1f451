"""`strobe bisect JOB --invariant NAME`: the checkpoint at which an invariant broke, and what happened there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from strobe.cli.bisect_replay import Replaying, replay_options
from strobe.cli.checks import invariants_from, verdict_json
from strobe.cli.diff import show_diff
from strobe.cli.output import Command, Session, Whole, common_options
from strobe.cli.sql import open_cut
from strobe.model.errors import Misuse, StrobeError
from strobe.model.ids import SnapshotId
from strobe.model.invariants import Invariant, Outcome, Verdict
from strobe.model.suggest import did_you_mean
from strobe.store.jobs import check_known
from strobe.store.places import checkpoints_of
from strobe.store.verdicts import read_verdicts

if TYPE_CHECKING:
    from strobe.look.bisecting import Break

__all__ = ["bisect_command"]

_KNOWN = (Outcome.HOLDS, Outcome.VIOLATED)


@click.command(
    "bisect",
    cls=Command,
    examples=(
        ("strobe bisect ledger --invariant 'no money is made'", "from the verdicts that are noted"),
        ("strobe bisect ledger --invariant 'no money is made' -f pipeline.py", "others are asked where need be"),
        ("strobe bisect ledger --sql 'from state.balances where balance < 0'", "a question that nobody had asked"),
        ("strobe bisect ledger --invariant 'no money is made' --replay", "to the batch, and the rows that it read"),
    ),
)
@click.argument("job")
@click.option("--invariant", "name", metavar="NAME", help="Which one; not needed if FILE has only one, or with --sql.")
@click.option(
    "-f", "--file", "file", metavar="FILE",
    help="Where it is declared: a pipeline (FILE.py), or queries (FILE.sql).",
)  # fmt: skip
@click.option("--sql", "query", metavar="QUERY", help="A query that gives the rows which must not exist.")
@click.option("--good", type=Whole(1), metavar="ID", help="A checkpoint where it holds; default: the oldest retained.")
@click.option("--bad", type=Whole(1), metavar="ID", help="One where it is violated; default: the newest that is known.")
@click.option("--again", is_flag=True, help="Use no noted verdicts: the invariant has changed since.")
@click.option("--memory", default="1GB", show_default=True, help="What a query may use.")
@click.option("--timeout", type=float, metavar="S", help="Seconds that a query may take.")
@replay_options
@common_options
def bisect_command(
    job: str,
    name: str | None,
    file: str | None,
    query: str | None,
    good: int | None,
    bad: int | None,
    again: bool,
    memory: str,
    timeout: float | None,
    replaying: Replaying | None,
    session: Session,
) -> int:
    """Find the checkpoint at which an invariant broke, among those that JOB retains, and show what differs between it
    and the last good one.

    Few are asked: what is broken is taken to stay broken. Verdicts that the job has noted are not asked for again.

    With --replay go on from the last good one in a scratch fork, a batch at a time, to the first batch that breaks it,
    and show the rows that it read. Sinks discard there; the job, which may be running, its channels and its tables are
    left alone.

    The exit code is 0 if the place was found, 1 if it is not among what is retained (the invariant holds there, or it
    was broken already), or if it cannot be evaluated.
    """
    check_known(session.home, job)
    pipeline = None if replaying is None else replaying.load(session, job, file)
    invariant = _invariant(name, file, query)
    if invariant is None and pipeline is not None:
        invariant = next((each for each in pipeline.invariants if each.name == name), None)
    named = invariant.name if invariant is not None else str(name)
    noted = {} if again or query is not None or (file or "").endswith(".sql") else _noted(session, job, named)
    if invariant is None and (replaying is not None or not noted):
        if replaying is not None:
            raise Misuse(
                f"The pipeline of job {job!r} has no invariant {named!r}, which a replay would ask after each batch.",
                next="Say where it is declared: -f invariants.sql, or --sql QUERY.",
            )
        raise Misuse(
            f"No verdict on an invariant {named!r} of job {job!r} is noted.",
            next="Say where it is declared: -f pipeline.py, -f invariants.sql, or --sql QUERY.",
        )
    from strobe.look.bisecting import find_break

    asking = _Asking(session, job, invariant, noted, memory, timeout)
    found = find_break(_range(session, job, noted, good, bad), asking)
    if replaying is None or found.good is None or found.bad is None or invariant is None or pipeline is None:
        return _answer(session, job, named, found, asking, memory)
    return replaying.run(session, pipeline, invariant, found.good, found.bad, memory=memory, timeout=timeout)


class _Asking:
    """One checkpoint after the other; noted verdicts first."""

    def __init__(
        self,
        session: Session,
        job: str,
        invariant: Invariant | None,
        noted: Mapping[SnapshotId, Verdict],
        memory: str,
        timeout: float | None,
    ) -> None:
        self._session, self._job, self._invariant, self._noted = session, job, invariant, noted
        self._memory, self._timeout = memory, timeout
        self.evaluated = 0

    def __call__(self, snapshot: SnapshotId) -> Verdict:
        known = self._noted.get(snapshot)
        if known is not None:
            return known
        if self._invariant is None:
            raise Misuse(
                f"Nobody has asked checkpoint {snapshot} yet.",
                next="Say where the invariant is declared, so that it can be: -f pipeline.py, or -f invariants.sql.",
            )
        from strobe.look.judging import check_names, judge

        try:
            where = f"{self._job}/{snapshot}"
            with open_cut(self._session, where, memory=self._memory, timeout=self._timeout) as cut:
                if self.evaluated == 0:
                    check_names([self._invariant], cut.manifest.nodes)
                self.evaluated += 1
                verdict = judge(cut, self._invariant)
        except Misuse:
            if self.evaluated == 0:
                raise
            verdict = Verdict(self._invariant.name, snapshot, Outcome.FAILED, why="it is not retained any more")
        except StrobeError as error:
            verdict = Verdict(self._invariant.name, snapshot, Outcome.FAILED, why=error.what)
        if not self._session.json:
            self._session.say((f"checkpoint {snapshot}: {verdict.outcome.value}", "dim"))
        return verdict


# ── what is asked ───────────────────────────────────────────────────────────────────────────────────────────────────


def _invariant(name: str | None, file: str | None, query: str | None) -> Invariant | None:
    if query is not None:
        if file is not None:
            raise Misuse("The invariant is given twice: with --sql and with --file.", next="Give one of them.")
        return Invariant(name or "the query", query)
    if file is None:
        if name is None:
            raise Misuse("It is not clear which invariant is meant.", next="Write --invariant NAME, or --sql QUERY.")
        return None
    found = {invariant.name: invariant for invariant in invariants_from(file)}
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name not in found:
        what = (
            "It is not clear which invariant is meant."
            if name is None
            else f"There is no invariant {name!r} in {file}."
        )
        hint = did_you_mean(name, list(found)) if name is not None else ""
        raise Misuse(what, next=f"{hint}Write --invariant with one of: {', '.join(map(repr, found))}.")
    return found[name]


def _noted(session: Session, job: str, name: str) -> dict[SnapshotId, Verdict]:
    """The noted verdicts that are answers: what failed or was skipped is asked again."""
    verdicts = read_verdicts(session.home, job)
    return {v.snapshot: v for v in verdicts if v.invariant == name and v.outcome in _KNOWN}


def _range(
    session: Session, job: str, noted: Mapping[SnapshotId, Verdict], good: int | None, bad: int | None
) -> tuple[SnapshotId, ...]:
    kept = checkpoints_of(session.home, job).list()
    for option, wanted in (("--good", good), ("--bad", bad)):
        if wanted is not None and wanted not in kept:
            raise Misuse(
                f"{option} {wanted}: job {job!r} does not retain a checkpoint {wanted}.",
                next=f"It retains: {', '.join(map(str, kept)) or 'none'}.",
            )
    violated = [s for s in kept if s in noted and noted[s].outcome is Outcome.VIOLATED and s > (good or 0)]
    last = bad or (violated[-1] if violated else kept[-1] if kept else 0)
    holding = [s for s in kept if s in noted and noted[s].outcome is Outcome.HOLDS and s < last]
    first = good or (holding[-1] if holding else kept[0] if kept else 0)
    if first >= last:
        many = "is only one" if len(kept) == 1 else "are none"
        raise Misuse(
            f"--good {first} is not before --bad {last}."
            if good and bad
            else f"Two checkpoints of job {job!r} are needed, and from {first} to {last} there {many}.",
            next=f"It retains: {', '.join(map(str, kept)) or 'none'}. How many: CheckpointConfig(retained=N).",
        )
    return tuple(s for s in kept if first <= s <= last)


# ── what is said ────────────────────────────────────────────────────────────────────────────────────────────────────


def _answer(session: Session, job: str, name: str, found: Break, asking: _Asking, memory: str) -> int:
    good, bad = found.good, found.bad
    whole = good is not None and bad is not None
    diff = None
    if good is not None and bad is not None:
        from strobe.cli.sql_output import plain
        from strobe.look.diff import diff_cuts

        then = open_cut(session, f"{job}/{good.snapshot}", memory=memory)
        with open_cut(session, f"{job}/{bad.snapshot}", memory=memory) as now, then:
            diff = diff_cuts(then, now)
    if session.json:
        said: dict[str, Any] = {
            "job": job, "invariant": name, "found": whole,
            "last_good": None if good is None else verdict_json(good),
            "first_bad": None if bad is None else verdict_json(bad),
            "unknown": [verdict_json(v) for v in found.unknown], "evaluated": asking.evaluated,
            "diff": None if diff is None else plain(asdict(diff)),
        }  # fmt: skip
        session.answer(said)
        return 0 if whole else 1
    for verdict in found.unknown if good is not None or bad is None else ():
        session.say(verdict.sentence)
    if good is None and bad is not None:
        session.say(bad.sentence)
        before = f"{len(found.unknown)} before it gave no answer" if found.unknown else "it broke before that"
        session.say(f"That is the oldest checkpoint that answers: {before}.")
    elif bad is None and good is not None:
        session.say(good.sentence)
        session.say("So nothing is broken there. A checkpoint where it is violated: --bad ID")
    if diff is not None and good is not None and bad is not None:
        session.say(("last good  ", "green"), f"{job}/{good.snapshot}  {good.sentence}")
        session.say(("first bad  ", "red"), f"{job}/{bad.snapshot}  {bad.sentence}")
        session.say("")
        show_diff(session, diff)
        session.say("")
        session.say(f"rows that differ: strobe diff {job}/{good.snapshot} {job}/{bad.snapshot} --stage STAGE")
    return 0 if whole else 1

"""The options of `strobe run` that restore, rescale, fork and rehearse, and how a plan is shown."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from strobe.cli.figures import human_bytes
from strobe.cli.output import Session
from strobe.hosts.spark.job.rehearse import Rehearsal
from strobe.hosts.spark.restore.plan import ClaimMode, How, RestoreOptions, RestorePlan, StageAction
from strobe.hosts.spark.restore.resume import ResumePlan
from strobe.model.errors import Misuse, StrobeError
from strobe.model.ids import NodeId
from strobe.store.signing import SIGNED_BY

__all__ = ["base_option", "parse_partitions", "restore_options", "show_plan", "show_rehearsal", "show_resume"]

Function = TypeVar("Function", bound=Callable[..., Any])
_HOW = {
    How.ROLLBACK: "goes back in place",
    How.REBUILD: "goes back in place, from a savepoint",
    How.FORK: "is created",
}


def restore_options(function: Function) -> Function:
    """What a run restores and how, handed over as `restore`."""

    @functools.wraps(function)
    def command(
        *args: Any,
        snapshot: str | None,
        claim_mode: str,
        partitions: tuple[str, ...],
        allow_non_restored_state: bool,
        root: str | None,
        sinks_from: tuple[str, ...],
        allow_changed_state: tuple[str, ...],
        verify: bool,
        signed_by: str | None,
        **kwargs: Any,
    ) -> Any:
        every, single = parse_partitions(partitions)
        restore = RestoreOptions(
            snapshot, claim_mode, allow_non_restored_state, every, single, root, sinks_from, allow_changed_state,
            verify, signed_by,
        )  # fmt: skip
        return function(*args, restore=restore, **kwargs)

    for option in reversed((
        click.option("--snapshot", "-s", metavar="SNAPSHOT",
                     help="Restore this one: a directory, JOB (its newest checkpoint), or JOB/ID."),
        click.option("--claim-mode", "--restore-mode", type=click.Choice([m.value for m in ClaimMode]),
                     default=ClaimMode.NO_CLAIM.value, show_default=True,
                     help="no-claim: the snapshot stays for ever. claim: it is the job's own, and goes by retention."),
        click.option("--partitions", "-p", multiple=True, metavar="N|UID=N",
                     help="Partitions of the state of every stage, or of one; may be repeated."),
        click.option("--allow-non-restored-state", "-n", is_flag=True,
                     help="Drop the state of stages that are not in the file any more, and rows on their way to a "
                          "stage that no longer reads their channel."),
        click.option("--root", metavar="HASH", help="With -s: the Merkle root that the snapshot must have."),
        click.option("--signed-by", metavar="KEY", envvar=SIGNED_BY, show_envvar=True,
                     help="With -s: the public key (a PEM file, or env:NAME) that the snapshot must be signed by."),
        click.option("--sinks-from", multiple=True, metavar="DIR",
                     help="With -s: where sinks of a snapshot from outside this home may be copied from; may be "
                          "repeated."),
        click.option("--allow-changed-state", multiple=True, metavar="UID",
                     help="Go on with this stage's state although its code means something else now; may be repeated."),
        click.option("--verify", is_flag=True,
                     help="With -s: compare every byte of the snapshot with its hash, before anything else."),
    )):  # fmt: skip
        command = option(command)
    return command  # type: ignore[return-value]


def parse_partitions(given: tuple[str, ...]) -> tuple[int | None, dict[str, int]]:
    """`8` for every stage, `balances=8` for one."""
    every: int | None = None
    single: dict[str, int] = {}
    for word in given:
        uid, equals, number = word.rpartition("=")
        if not number.isdecimal() or int(number) < 1 or (equals and not uid):
            raise Misuse(
                f"-p {word}: that is not a number of partitions.",
                untouched="Nothing was started.",
                next="Give a whole number of at least 1 for all stages (-p 8), or for one (-p balances=8).",
            )
        if equals:
            single[uid] = int(number)
        else:
            every = int(number)
    return every, single


def show_plan(plan: RestorePlan, session: Session) -> None:
    if session.json:
        session.answer(plan.as_json())
        return
    say = session.say
    say((f"{plan.kind} {plan.snapshot}", "bold"), f" of job {plan.job}, {plan.where}")
    say(f"  job {plan.into} in {plan.home} {_HOW[plan.how]}, on timeline {plan.timeline}; ", _claim(plan))
    say(("stages", "bold"))
    for stage in plan.stages:
        say(f"  {stage.uid:<20} {stage.action.value}", *_stage_details(stage))
    for uid, host in plan.chained.items():
        say(f"  {uid:<20} chained, with {host}")
    if plan.channels:
        say(("channels", "bold"))
    for channel in plan.channels:
        say(f"  {channel.name:<20} {channel.action.value}", _channel_details(channel))
        for change in channel.changes:
            say(f"  {'':<20} {change}")
        if why := plan.kept.get(NodeId(channel.name)):
            say(f"  {'':<20} keeps its channel: {why}")
    if plan.sinks:
        say(("sinks", "bold"))
    for sink in plan.sinks:
        say(f"  {sink.stage:<20} {sink.fate.value}: {sink.detail}")
    _show_verdict(plan, session)
    if not plan.problems:
        say(("✓ ", "green"), f"It would succeed, and write about {human_bytes(plan.bytes)}. Nothing was changed.")


def show_resume(plan: ResumePlan, session: Session) -> None:
    if session.json:
        session.answer(plan.as_json())
        return
    session.say(("job ", "bold"), f"{plan.job} in {plan.home}, as it was left")
    for uid, does in plan.stages:
        session.say(f"  {uid:<20} {does}")
    _show_verdict(plan, session)
    if not plan.problems:
        session.say(("✓ ", "green"), "Every check has passed. Nothing was changed.")


def _show_verdict(plan: RestorePlan | ResumePlan, session: Session) -> None:
    for warning in plan.warnings:
        session.say(("· ", "yellow"), warning)
    for sentence in plan.unchecked:
        session.say(("? ", "yellow"), f"not checked: {sentence}")
    for problem in plan.problems:
        session.say(("✗ ", "red"), problem.what)
        if problem.next:
            session.say(f"  next: {problem.next}")
    if plan.problems:
        session.say("It would not succeed. Nothing was changed.")


def _claim(plan: RestorePlan) -> str:
    return "the snapshot stays" if plan.claim is ClaimMode.NO_CLAIM else "the snapshot becomes the job's own"


def _stage_details(stage: Any) -> tuple[str, ...]:
    record = stage.record
    parts = []
    if record is not None and stage.action in (StageAction.RESTORED, StageAction.DROPPED):
        parts.append(f" at batch {record.batch}, {human_bytes(stage.bytes)}")
        if record.state_rows:
            parts.append(f", {record.state_rows:,} rows of state")
    if stage.action is StageAction.REPLACING:
        parts.append(f" of {stage.replaces}, at batch {record.batch}, without its state")
    if stage.action is StageAction.UNCHAINED:
        parts.append(f", where {stage.host} was, at batch {record.batch}")
    if stage.partitions is not None:
        parts.append(", repartitioned from {} to {}".format(*stage.partitions))
    if stage.action is StageAction.NEW and stage.starts:
        where = "at the earliest row that is kept" if stage.earliest else "at the snapshot"
        parts.append(f", begins {where}")
    return tuple(parts)


def _channel_details(channel: Any) -> str:
    if channel.content:
        return f" with {len(channel.content)} commits, {channel.rows:,} rows, {human_bytes(channel.bytes)}"
    return f" to version {channel.to}, {channel.behind} commits are left behind" if channel.behind else ""


def show_rehearsal(rehearsal: Rehearsal, session: Session) -> None:
    if session.json:
        failure = rehearsal.failure
        session.answer(
            {
                "plan": rehearsal.plan.as_json(),
                "stages": dict(rehearsal.stages),
                "seconds": round(rehearsal.seconds, 3),
                "succeeded": rehearsal.exit_code == 0,
                "failure": None if failure is None else _error_json(failure),
            }
        )
        return
    if rehearsal.plan.problems:
        show_plan(rehearsal.plan, session)
        return
    for uid, words in rehearsal.stages:
        session.say(f"  {uid:<20} {words}")
    if rehearsal.failure is not None:
        session.say(("✗ ", "red"), rehearsal.failure.what)
        session.say("The job, its channels and its tables are as they were.")
    else:
        session.say(
            ("✓ ", "green"), f"rehearsed in {rehearsal.seconds:.0f} s: the restore works. Nothing of it was kept."
        )


def _error_json(error: StrobeError) -> dict[str, Any]:
    return {"what": error.what, "untouched": error.untouched, "next": error.next, "exit_code": error.exit_code}


def base_option(function: Function) -> Function:
    """Where the job's tables are, and what it is called."""
    for option in reversed((
        click.option("--name", metavar="NAME", help="Run under this name: with -s, a fork beside the original."),
        click.option("--base", metavar="DIR", type=click.Path(path_type=Path),
                     help="Where relative paths of sinks begin.  [default: the working directory]"),
    )):  # fmt: skip
        function = option(function)
    return function

"""`strobe bisect --replay`: its options, and how the batch and its rows are shown."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from strobe.cli.output import Session, Whole
from strobe.model.errors import Misuse
from strobe.model.invariants import Invariant, Verdict
from strobe.store.locate import locate
from strobe.store.signing import SIGNED_BY, wanted_signer

if TYPE_CHECKING:
    from strobe.hosts.spark.job.replaying import Replayed, ReplayedBatch
    from strobe.hosts.spark.pipeline.pipeline import Pipeline

__all__ = ["Replaying", "replay_options"]

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Replaying:
    """What was asked for. `target` None: the file that the job was started with."""

    target: str | None
    py_files: tuple[str, ...]
    master: str | None
    rows: int
    batches: int
    keep: bool
    allow_changed_state: tuple[str, ...]
    signed_by: str | None

    def load(self, session: Session, job: str, file: str | None) -> Pipeline:
        from strobe.hosts.spark.pipeline.loading import load_pipeline
        from strobe.store.runtime import UNKNOWN, read_runtime

        noted = (read_runtime(session.home, job) or UNKNOWN).target
        target = self.target or (file if file is not None and file.endswith(".py") else noted)
        if not target:
            raise Misuse(
                f"It is not known which file declares job {job!r}.",
                next="Name it: --target FILE, or --target FILE:NAME.",
            )
        pipeline = load_pipeline(str(target), py_files=self.py_files, master=self.master, home=session.home)
        return pipeline if pipeline.name == job else pipeline.renamed(job)

    def run(
        self,
        session: Session,
        pipeline: Pipeline,
        invariant: Invariant,
        good: Verdict,
        bad: Verdict,
        *,
        memory: str,
        timeout: float | None,
    ) -> int:
        """Exit code 0 if the batch was found."""
        from strobe.hosts.spark.job.replaying import Question, replay

        job = pipeline.name
        policy = wanted_signer(self.signed_by)
        nodes = locate(f"{job}/{bad.snapshot}", session.home, signed_by=policy).load().nodes
        if not session.json:
            session.say(("last good  ", "green"), f"{job}/{good.snapshot}  {good.sentence}")
            session.say(("first bad  ", "red"), f"{job}/{bad.snapshot}  {bad.sentence}")
            session.say("")
            session.say((f"a fork of {job}/{good.snapshot} goes on from there, a batch at a time …", "dim"))
        with _quiet():
            done = replay(
                pipeline, f"{job}/{good.snapshot}", Question(invariant, memory, timeout), home=session.home,
                upto={uid: node.batch for uid, node in nodes.items() if node.batch is not None},
                told=lambda batch, verdict: None if session.json else _progress(session, batch, verdict),
                most=self.batches, rows=self.rows, keep=self.keep, master=self.master,
                allow_changed_state=self.allow_changed_state, signed_by=policy,
            )  # fmt: skip
        if session.json:
            session.answer(_json(job, good, bad, done))
        else:
            _show(session, done, self.batches)
        return 0 if done.culprit is not None else 1


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence py4j: a batch that Spark has planned and must not run is refused, and py4j logs that at length."""
    before = [(logger, logger.level) for logger in map(logging.getLogger, ("strobe", "py4j", "pyspark"))]
    try:
        for logger, _ in before:
            logger.setLevel(logging.CRITICAL + 1)
        yield
    finally:
        for logger, level in before:
            logger.setLevel(level)


def replay_options(function: Function) -> Function:
    """Whether and how to replay, handed over as `replaying`."""

    @functools.wraps(function)
    def command(
        *args: Any,
        replay: bool,
        target: str | None,
        py_files: tuple[str, ...],
        master: str | None,
        rows: int,
        batches: int,
        keep: bool,
        allow_changed_state: tuple[str, ...],
        signed_by: str | None,
        **kwargs: Any,
    ) -> Any:
        asked = Replaying(target, py_files, master, rows, batches, keep, allow_changed_state, signed_by)
        replaying = asked if replay else None
        if replaying is None and (target or py_files or master or keep or allow_changed_state or signed_by):
            raise Misuse("These options need --replay.", next="Add --replay, or leave them out.")
        return function(*args, replaying=replaying, **kwargs)

    for option in reversed((
        click.option("--replay", is_flag=True, help="Go on from the last good one to the batch that breaks it."),
        click.option("--target", metavar="FILE[:NAME]",
                     help="With --replay: the pipeline.  [default: -f FILE.py, or what the job was started with]"),
        click.option("--py-files", multiple=True, metavar="FILES", help="With --replay: as for `strobe run`."),
        click.option("--master", metavar="URL", help="With --replay: where Spark runs.  [default: local[*]]"),
        click.option("--rows", type=Whole(1), default=20, metavar="N", show_default=True,
                     help="With --replay: rows of each input that are shown."),
        click.option("--batches", type=Whole(1), default=1000, metavar="N", show_default=True,
                     help="With --replay: give up after so many."),
        click.option("--keep", is_flag=True, help="With --replay: keep the fork, and say where it is."),
        click.option("--allow-changed-state", multiple=True, metavar="UID",
                     help="With --replay: go on although the stage's code means something else now."),
        click.option("--signed-by", metavar="KEY",
                     help="With --replay: the public key (a PEM file, or env:NAME) that both checkpoints must be "
                          f"signed by.  [default: {SIGNED_BY} in the environment]"),
    )):  # fmt: skip
        command = option(command)
    return command  # type: ignore[return-value]


def _progress(session: Session, batch: ReplayedBatch, verdict: Verdict) -> None:
    session.say((f"{batch.stage}, batch {batch.batch}: {verdict.outcome.value}", "dim"))


def _show(session: Session, done: Replayed, most: int) -> None:
    from strobe.cli.sql_output import answer

    session.say("")
    if done.culprit is None:
        reached = f"after {most:,} batches, more of them with --batches" if done.batches >= most else "to the end"
        session.say(f"{done.batches:,} batches were replayed, {reached}; {done.verdict.sentence}.")
        session.say("So it does not break from these rows alone: by code that has changed since, the clock, or chance.")
    else:
        session.say(("it breaks with  ", "red"), f"batch {done.culprit.batch} of stage {done.culprit.stage}")
        session.say(done.verdict.sentence)
    for batch, inputs in done.inputs:
        for each in inputs:
            session.say("")
            shown = "" if each.count <= each.rows.num_rows else f", the first {each.rows.num_rows} of {each.count:,}"
            session.say((f"{batch.stage}, batch {batch.batch}", "bold"), f": rows read from {each.name}{shown}")
            answer(each.rows, session, "table")
    if done.home is not None:
        session.say("")
        session.say(f"the fork is kept: strobe sql --home {done.home} {_job_in(done.home)}")


def _job_in(home: Path) -> str:
    from strobe.store.jobs import jobs_in

    return jobs_in(home)[0]


def _json(job: str, good: Verdict, bad: Verdict, done: Replayed) -> dict[str, Any]:
    from strobe.cli.checks import verdict_json
    from strobe.cli.sql_output import plain

    return {
        "job": job, "invariant": good.invariant, "found": done.culprit is not None,
        "last_good": verdict_json(good), "first_bad": verdict_json(bad),
        "replayed_batches": done.batches, "verdict": verdict_json(done.verdict),
        "batch": None if done.culprit is None else {"stage": done.culprit.stage, "batch": done.culprit.batch},
        "inputs": [
            {"stage": batch.stage, "batch": batch.batch, "from": each.name, "count": each.count,
             "rows": [plain(row) for row in each.rows.to_pylist()]}
            for batch, inputs in done.inputs for each in inputs
        ],
        "fork": None if done.home is None else str(done.home),
    }  # fmt: skip

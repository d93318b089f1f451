"""`strobe run`: start a pipeline, or resume it, and show it at work."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType

import click
from rich.console import Console

from strobe.cli.detach import run_detached, show_detached, starter
from strobe.cli.live_view import LiveView, PlainView
from strobe.cli.log_files import PrivateLogFile, Redacted, Shown
from strobe.cli.output import Command, Session, Whole, common_options
from strobe.cli.restore import base_option, restore_options, show_plan, show_rehearsal, show_resume
from strobe.cli.supervise import HOPELESS, Backoff, Supervised, obey_supervisor, supervise, supervisor_of
from strobe.cli.watching import Watchers, Watching, watching_options
from strobe.hosts.spark.job.job import Job, JobState, start_job
from strobe.hosts.spark.job.rehearse import dry_resume as resume_of
from strobe.hosts.spark.job.rehearse import dry_run as plan_of
from strobe.hosts.spark.job.rehearse import rehearse
from strobe.hosts.spark.jvm.session import end_spark, spark_ended
from strobe.hosts.spark.pipeline.loading import load_pipeline
from strobe.hosts.spark.pipeline.pipeline import Pipeline
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.hosts.spark.restore.resume import ResumePlan
from strobe.hosts.spark.snapshot.metrics import status_json
from strobe.hosts.spark.stage.failures import reason
from strobe.model.errors import Damaged, Failed, StrobeError
from strobe.store.layout import JobLayout

__all__ = ["run_command"]

_LOGGERS = ("strobe", "py4j", "pyspark", "opentelemetry")


@click.command(
    "run",
    cls=Command,
    examples=(
        ("strobe run pipeline.py", "run the pipeline that the file declares, or resume it"),
        ("strobe run pipelines.py:ledger", "one of several"),
        ("strobe run pipeline.py --master spark://127.0.0.1:7077", "on a Spark cluster"),
        ("strobe run --py-files lib.zip,rates.py pipeline.py", "with modules that are not beside the file"),
        ("strobe run --store s3://bucket/prefix pipeline.py", "with its checkpoints there, whatever the file says"),
        ("strobe run -d pipeline.py", "in the background; see `strobe status`, `logs` and `stop`"),
        ("strobe run -d --supervise pipeline.py", "and start it again when it dies"),
        ("strobe run --dry-run pipeline.py", "whether the job can go on with this file, and what would change"),
        ("strobe run -s ledger/12 pipeline.py --dry-run", "what going back to checkpoint 12 would do"),
        ("strobe run -s ledger/12 pipeline.py", "go back to it"),
        ("strobe run -p 8 pipeline.py", "resume with the state in 8 partitions"),
        ("strobe run --metrics 9249 pipeline.py", "with metrics for Prometheus"),
        ("strobe run --notify https://ops.example/hook pipeline.py", "somebody is told of failures"),
        ("strobe run -s DIR pipeline.py --name staging --base staging", "a fork of a savepoint, beside the original"),
    ),
)
@click.argument("target", metavar="FILE[:NAME]")
@click.option("--master", metavar="URL", help="Where Spark runs.  [default: local[*]]")
@click.option(
    "--store",
    metavar="PLACE",
    help="Where checkpoints go: a directory, or s3://bucket/prefix.  [default: as FILE says]",
)
@click.option(
    "--py-files",
    multiple=True,
    metavar="FILES",
    help="Modules and packages for the workers: .py, .zip, .egg files or directories, with commas, or repeated.",
)
@click.option("--verbose", "-v", is_flag=True, help="Show what the job logs, not only warnings.")
@click.option("--detach", "-d", is_flag=True, help="Return when the job runs; it goes on in the background.")
@click.option("--supervise", "supervised", is_flag=True, help="Start the driver again when it, or its Spark, dies.")
@click.option(
    "--max-restarts",
    type=Whole(0),
    default=Backoff().limit,
    metavar="N",
    show_default=True,
    help="With --supervise: give up after so many in a row.",
)
@click.option("--starter-pipe", type=int, hidden=True)
@restore_options
@base_option
@watching_options
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@click.option(
    "--rehearse", "rehearsal", is_flag=True, help="With -s: try it in a scratch home, with sinks that discard."
)
@common_options
def run_command(
    target: str,
    master: str | None,
    store: str | None,
    py_files: tuple[str, ...],
    verbose: bool,
    detach: bool,
    supervised: bool,
    max_restarts: int,
    starter_pipe: int | None,
    restore: RestoreOptions,
    name: str | None,
    base: Path | None,
    watching: Watching,
    dry_run: bool,
    rehearsal: bool,
    session: Session,
) -> int:
    """Run a pipeline until it ends, or until it is interrupted.

    The same command resumes it: after an interrupt, after a crash, after a kill. Nothing is lost and nothing is done
    twice. With -s it goes back to a snapshot first: in place, or as a fork under another --name or --home.
    """
    with _steps(session.console) if session.console.is_terminal and not session.json else contextlib.nullcontext():
        pipeline = load_pipeline(target, py_files=py_files, master=master, home=session.home)
    pipeline = pipeline if name is None else pipeline.renamed(name)
    if store is not None:
        pipeline.checkpoint = replace(pipeline.checkpoint, store=store)
    pipeline.check(base)
    if dry_run or rehearsal:
        return _try(pipeline, restore, master, base, session, rehearsal=rehearsal)
    if detach and starter_pipe is None:
        end_spark()  # the job has its own
        show_detached(session, run_detached(pipeline.name, session.home))
        return 0
    supervisor = supervisor_of(os.environ)
    if supervised and supervisor is None:
        return _supervise(pipeline.name, watching, Backoff(max_restarts), session, starter_pipe, detach, verbose)
    if supervisor is not None:
        obey_supervisor(supervisor.status)
        restore = restore if not supervisor.resume else restore.resuming()
    quiet = session.json or detach
    with (
        starter(starter_pipe) as told,
        _Logs(session.home, pipeline.name, level=_level(verbose, session.json, detach)) as logs,
        Watchers(watching, pipeline.name) as watchers,
    ):
        console = session.console
        if not quiet:
            session.say(("strobe ", "bold"), f"starts job {pipeline.name!r} with {len(pipeline.stages)} stages …")
        with _steps(console) if console.is_terminal and not quiet else contextlib.nullcontext():
            job = _started(pipeline, watchers, session, master, base, restore, supervisor)
        _stop_on_signals(job)
        watchers.watch_job(job)
        job.home.publish(target=_absolute(target), base=str((base or Path()).absolute()))
        told.running()
        if quiet:
            job.wait()
        else:
            view = LiveView(console, job) if console.is_terminal else PlainView(session.say, job)
            logs.route_through(view)
            with view:
                job.wait()
            view.farewell(job.status())
        watchers.job_ended(job)
    if session.json and not detach and job.state is not JobState.FAILED:
        session.answer(status_json(job.status()))
    if job.state is JobState.FAILED:
        raise Failed(
            f"Job {job.name!r} failed: {job.error}",
            untouched="Its checkpoints, channels and sinks are intact.",
            next=f"Fix the cause and run it again{', without -s' if restore.snapshot else ''}: it resumes where it "
            f"was. Logs: {session.home / JobLayout(job.name).logs}",
        )
    return 0


def _started(
    pipeline: Pipeline,
    watchers: Watchers,
    session: Session,
    master: str | None,
    base: Path | None,
    restore: RestoreOptions,
    supervisor: Supervised | None,
) -> Job:
    if watchers.url is not None:
        logging.getLogger("strobe.job").info("metrics at %s", watchers.url)
        if not session.json:
            session.say(("metrics ", "bold"), watchers.url)
    try:
        job = start_job(pipeline, home=str(session.home), master=master, base=base, restore=restore)
    except StrobeError as error:
        watchers.tell("job.failed", f"it did not start: {error.what}")
        if supervisor is not None and isinstance(error, Damaged):
            error.exit_code = HOPELESS
        raise
    job.supervisor = None if supervisor is None else supervisor.status
    return job


def _supervise(
    job: str,
    watching: Watching,
    backoff: Backoff,
    session: Session,
    starter_pipe: int | None,
    detach: bool,
    verbose: bool,
) -> int:
    end_spark()  # the driver has its own
    with (
        starter(starter_pipe) as told,
        _Logs(session.home, job, level=_level(verbose, session.json, detach)),
        Watchers(Watching(notify=watching.notify), job) as watchers,
    ):
        return supervise(job, session.home, told, backoff, watchers.tell, capture=session.json and not detach)


def _absolute(target: str) -> str:
    """FILE, or FILE:NAME, with an absolute path, so that it can be read from another directory."""
    file, colon, name = (target, "", "") if Path(target).is_file() else target.rpartition(":")
    return f"{Path(file).absolute()}{colon}{name}"


def _try(
    pipeline: Pipeline,
    restore: RestoreOptions,
    master: str | None,
    base: Path | None,
    session: Session,
    *,
    rehearsal: bool,
) -> int:
    """Show what a restore or a resume would do, or try it out. Writes no log: nothing of the job is touched."""
    home = str(session.home)
    if rehearsal:
        tried = rehearse(pipeline, restore=restore, home=home, master=master, base=base)
        show_rehearsal(tried, session)
        return tried.exit_code
    planned = resume_of if restore.snapshot is None else plan_of
    plan = planned(pipeline, restore=restore, home=home, master=master, base=base)
    if isinstance(plan, ResumePlan):
        show_resume(plan, session)
    else:
        show_plan(plan, session)
    return plan.exit_code


def _level(verbose: bool, json: bool, detached: bool) -> int:
    """The level of messages on the terminal. In the background the terminal is the log file, which has everything
    already."""
    if detached:
        return logging.CRITICAL + 1
    return logging.ERROR if json else logging.INFO if verbose else logging.WARNING


@contextlib.contextmanager
def _steps(console: Console) -> Iterator[None]:
    """While the job starts, a line that says which step it is at."""
    logger = logging.getLogger("strobe.job")
    with console.status("…") as status:
        handler = logging.Handler()
        handler.emit = lambda record: status.update(record.getMessage())  # type: ignore[method-assign]
        handler.addFilter(lambda record: record.levelno == logging.INFO)
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)


def _stop_on_signals(job: Job) -> None:
    """An interrupt ends the job between two batches; a second one ends the process."""

    def stop(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        threading.Thread(target=job.stop, name="stop", daemon=True).start()

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, stop)


class _Logs:
    """The log file of the job gets everything; the terminal gets Strobe's warnings, above the live view if there is
    one, and nothing of what PySpark logs about errors that Strobe reports itself.

    The file is opened by the first line, which comes after the job is claimed: a run that is refused leaves no trace.
    """

    def __init__(self, home: Path, job: str, *, level: int) -> None:
        self._before: list[tuple[logging.Logger, int, bool]] = []
        self._shown = logging.StreamHandler(sys.stderr)
        self._shown.setLevel(level)
        self._shown.setFormatter(Shown("%(asctime)s %(message)s", "%H:%M:%S"))
        self._file = _LogFile(home.absolute() / JobLayout(job).driver_log, delay=True)
        self._file.setFormatter(Redacted("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def __enter__(self) -> _Logs:
        logging.getLogger("strobe").addHandler(self._shown)
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            self._before.append((logger, logger.level, logger.propagate))
            logger.setLevel(logging.INFO if name == "strobe" else logging.WARNING)
            logger.propagate = False
            logger.addHandler(self._file)
        logging.getLogger().addFilter(self._not_of_py4j)
        self._hook, threading.excepthook = threading.excepthook, self._uncaught
        return self

    def __exit__(self, *_: object) -> None:
        threading.excepthook = self._hook
        logging.getLogger().removeFilter(self._not_of_py4j)
        logging.getLogger("strobe").removeHandler(self._shown)
        for logger, level, propagate in self._before:
            logger.removeHandler(self._file)
            logger.setLevel(level)
            logger.propagate = propagate
        self._file.close()

    def _uncaught(self, told: threading.ExceptHookArgs) -> None:
        """A thread has ended with an error: one sentence, and all of it in the file. This happens when Ctrl-C in the
        terminal ends Spark's JVM, too, while the job is being stopped."""
        error, name = told.exc_value, told.thread.name if told.thread is not None else "?"
        if error is None:
            return
        ended = spark_ended(error)
        words = f"{ended.what} {ended.untouched}" if ended is not None else f"{name}: {reason(error)}"
        logging.getLogger("strobe.job").warning("%s", words)
        whole = (told.exc_type, error, told.exc_traceback)
        self._file.handle(logging.LogRecord("strobe.job", logging.ERROR, __file__, 0, name, None, whole))

    def _not_of_py4j(self, record: logging.LogRecord) -> bool:
        """A filter: py4j logs broken connections with the root logger, which belongs to the user."""
        theirs = "py4j" in Path(record.pathname).parts
        if theirs:
            self._file.handle(record)
        return not theirs

    def route_through(self, view: LiveView | PlainView) -> None:
        self._shown.emit = lambda record: view.note(self._shown.format(record))  # type: ignore[method-assign]


class _LogFile(PrivateLogFile):
    """The log file. A full disk must neither stop the job nor fill the terminal with tracebacks."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        pass

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it flushes, once more
            super().close()

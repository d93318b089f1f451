"""The Spark session that pipelines run in, with the settings that Strobe's guarantees rest on.

*State.* RocksDB with changelog checkpointing: a batch writes what it changed, not the whole state, and every file
is written once. `minBatchesToRetain` is at least 100, so a snapshot's files are still there when they are copied.

*Spark's checkpoint files.* `FileSystemBasedCheckpointFileManager` writes a hidden temporary file and renames it, so
a file is whole or absent after a crash of the process, like with Spark's default manager, in a third of the time on
a local disk. It differs in one thing: whether the name is taken is looked up before the rename, not by it, so two
drivers that write the same batch at the same moment would both succeed. Strobe lets only one incarnation run.
Neither manager syncs anything: what must survive a power cut, Strobe syncs itself. Spark's and Hadoop's checksum
files beside each of these are off: a snapshot has its own hash of every file, and they treble the number of files.

*Idle stages.* A query that has found nothing to read looks again after 25 ms, not 10, if its stage says nothing else:
`stage.asking` does for most of them, unless somebody has set another pause for the session.

*Data.* Timestamps are written as microseconds: Spark's default INT96 is read as nanoseconds by Arrow.

*Quiet.* The JVM's and the workers' output goes to `log`, not to the terminal; what Spark logs is warnings and
errors.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import pyspark.util
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from strobe.hosts.spark.jvm.class_archive import jvm_option
from strobe.hosts.spark.jvm.launch import launch
from strobe.hosts.spark.jvm.local_files import write_without_processes
from strobe.hosts.spark.jvm.output import SparkOutput
from strobe.hosts.spark.jvm.ports import guard_callbacks, is_local, port_settings, warn_if_open
from strobe.hosts.spark.jvm.readers import ReaderServer
from strobe.hosts.spark.jvm.session_directory import SessionDirectory
from strobe.hosts.spark.jvm.worker_python import worker_python
from strobe.model.errors import Failed, Misuse, StrobeError
from strobe.store.private import open_private

__all__ = [
    "DEFAULT_MASTER",
    "DEFAULT_POLLING_DELAY",
    "FILE_MANAGER",
    "POLLING_DELAY",
    "SparkEnded",
    "check_settings",
    "end_spark",
    "job_session",
    "own_session",
    "passing_session",
    "passing_settings",
    "spark_ended",
    "spark_session",
    "stop_session",
]

DEFAULT_MASTER: Final = "local[*]"
FILE_MANAGER: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
POLLING_DELAY: Final = "spark.sql.streaming.pollingDelay"
DEFAULT_POLLING_DELAY: Final = "25ms"
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_MIN_BATCHES: Final = 100
_HANGING_UP: Final = 10.0  # seconds
_output: Final = SparkOutput()
_readers: Final[list[ReaderServer]] = []  # of the JVM that runs
_made: Final[weakref.WeakSet[SparkContext]] = weakref.WeakSet()  # that were started here
_jobs: Final[dict[SparkContext, list[tuple[SparkSession, Mapping[str, str]]]]] = {}  # that run, with their settings
_jobs_lock: Final = threading.Lock()
_passing: Final = threading.RLock()  # while a session has settings that are not to stay

_MASTER: Final = re.compile(r"(local(-cluster)?(\[.*)?|yarn)$|(spark|k8s|mesos)://")
_ERRORS_AS_JSON: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.minBatchesToRetain": str(_MIN_BATCHES),
    POLLING_DELAY: DEFAULT_POLLING_DELAY,
    "spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER,
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
}

_log = logging.getLogger("strobe.session")

_LOG4J: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %p %c{1}: %m%n%ex
# Said once per start, and nothing to be done about.
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.host.name = org.apache.spark.util.Utils
logger.host.level = error
"""


def spark_session(
    app_name: str,
    master: str = "local[2]",
    *,
    extra: Mapping[str, str] | None = None,
    log: str | Path | None = None,
    home: Path | None = None,
) -> SparkSession:
    """A session with Strobe's settings. `extra` adds to them; what would break a guarantee is Misuse.

    `log` is the file that Spark's output is appended to; without it, the output goes to a file that is deleted at exit,
    or, if there is a `home`, becomes the `log` of a later call. A session that exists is taken as it is, and given
    those settings that it can still take; what it cannot is Misuse.
    """
    check_settings(extra or {}, "The session")
    readers = None
    exists = SparkContext._active_spark_context is not None
    if not exists and SparkContext._gateway is None:
        directory = SessionDirectory()
        settings = {**_SETTINGS, **port_settings(master, directory.path), **(extra or {})}
        if is_local(master):
            settings.setdefault("spark.pyspark.python", worker_python(sys.executable, directory.path))
        settings.setdefault("spark.pyspark.python", sys.executable)
        # Outside of spark-submit, pyspark takes the workers' Python from here and not from the setting.
        os.environ["PYSPARK_PYTHON"] = settings["spark.pyspark.python"]
        readers = ReaderServer(settings["spark.pyspark.python"], directory.path)
        _readers.append(readers)
        if log is None and home is not None:
            log = _output.before_any_job(home)
        _start_jvm(settings, directory, Path(log) if log is not None else None)
    else:
        settings = {**_SETTINGS, **port_settings(master, None), **(extra or {})}
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:  # whatever the JVM says, in Java's words
        raise _not_started(master, error) from error
    if not exists:
        _made.add(session.sparkContext)
    else:
        _check_taken(session, extra or {})
        if "PYSPARK_PYTHON" not in os.environ:  # a session of the user's own; its workers need what the driver has
            session.sparkContext.pythonExec = sys.executable
    write_without_processes(session)
    _without_tracebacks(session)
    warn_if_open(session)
    if exists and log is not None:
        _output.become(Path(log))
    if readers is not None:
        readers.await_ready()
        if Path(os.environ["PYSPARK_PYTHON"]).parent != directory.path:
            readers.end()  # nobody asks for one, but the modules have been read from the disk
    return session


@contextlib.contextmanager
def job_session(
    name: str, master: str, *, extra: Mapping[str, str] | None = None, log: str | Path | None = None
) -> Iterator[SparkSession]:
    """A session for a job. If other jobs of this process run, it is a copy of theirs: names of queries and settings are
    each job's own. Spark is stopped with the last of them, unless somebody else had started it."""
    with _jobs_lock:
        running = SparkContext._active_spark_context
        if running is not None and running in _jobs:
            check_settings(extra or {}, "The session")
            session = _copy(*_jobs[running][0])
            _check_taken(session, extra or {})
        else:
            session = spark_session(name, master, extra=extra, log=log)
        mine = (session, dict(extra or {}))
        users = _jobs.setdefault(session.sparkContext, [])
        users.append(mine)
    try:
        yield session
    finally:
        with _jobs_lock:
            users.remove(mine)
            if not users:
                del _jobs[session.sparkContext]
                if session.sparkContext in _made:
                    stop_session(session)


def _copy(session: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """A copy of it without these settings."""
    given: Any = session
    with _passing:
        copy = SparkSession(session.sparkContext, given._jsparkSession.cloneSession())
    for key in settings:
        with contextlib.suppress(PySparkException):  # one that Spark takes only when it starts
            copy.conf.unset(key)
            if key in _SETTINGS:
                copy.conf.set(key, _SETTINGS[key])
    return copy


@contextlib.contextmanager
def passing_session(name: str, master: str) -> Iterator[SparkSession]:
    """A session for one question: the one that this process has, which stays, or a new one that ends with the
    question."""
    exists = SparkContext._active_spark_context is not None
    session = spark_session(name, master)
    try:
        yield session
    finally:
        if not exists:
            stop_session(session)


@contextlib.contextmanager
def own_session(session: SparkSession, settings: Mapping[str, str], whose: str) -> Iterator[SparkSession]:
    """A copy of it, as it is now, with these settings; itself, if there are none. To start a query with settings is not
    enough: Spark looks at them while it analyses a plan, too, and a source keeps the session it was declared in."""
    if not settings:
        yield session
        return
    given, of_class = cast(Any, session), cast(Any, SparkSession)
    copy: Any = SparkSession(session.sparkContext, given._jsparkSession.cloneSession())
    for key, value in settings.items():
        try:
            copy.conf.set(key, value)
        except PySparkException as error:
            raise Misuse(
                f"{whose} cannot have {key} = {value!r}: {str(error).splitlines()[0]}",
                untouched="Nothing was started.",
                next="A setting that Spark takes only when it starts belongs into the pipeline's conf.",
            ) from error
    active = of_class._get_j_spark_session_class(given._jvm)  # of this thread
    active.setActiveSession(copy._jsparkSession)
    try:
        yield copy
    finally:
        active.setActiveSession(given._jsparkSession)


@contextlib.contextmanager
def passing_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set these in the session while something starts that takes its settings from there. Not two at once."""
    with _passing:
        before = {key: session.conf.get(key, None) for key in settings}
        try:
            for key, value in settings.items():
                session.conf.set(key, value)
            yield
        finally:
            for key, old in before.items():
                if old is None:
                    session.conf.unset(key)
                else:
                    session.conf.set(key, old)


def _check_taken(session: SparkSession, settings: Mapping[str, str]) -> None:
    """Some settings count only while Spark starts."""
    started = session.sparkContext.getConf()
    for key, value in settings.items():
        try:
            if started.get(key) != value:
                session.conf.set(key, value)
        except PySparkException as error:
            raise Misuse(
                f"{key} can no longer be set to {value!r}: Spark takes it only when it starts, and it runs already.",
                untouched="Nothing was started.",
                next="Declare the pipeline before the first line of the file that needs Spark (a UDF with its type as "
                "a string, a column, a session), or set it where the session is made.",
            ) from error


class SparkEnded(Failed):
    """Spark's own process is gone, and everything that ran in it: only another driver can go on."""


def spark_ended(error: BaseException | None = None) -> SparkEnded | None:
    """Whether the JVM that this process has started is gone, and how. `error`: what makes one ask. A process that dies
    hangs up first and is gone a moment later, so a broken connection is given that moment."""
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return None
    if _hung_up(error):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_HANGING_UP)
    code = process.poll()
    if code is None:
        return None
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    memory = " If nobody killed it, the machine ran out of memory." if code == -signal.SIGKILL else ""
    return SparkEnded(
        f"Spark's JVM {how}.", untouched="Nothing is lost.", next=f"Run the job again: it resumes.{memory}"
    )


def _hung_up(error: BaseException | None) -> bool:
    """Whether it says that the connection broke: py4j has a name for that, or gives an error without a trace."""
    told = isinstance(error, Py4JNetworkError | ConnectionError)
    return told or (type(error) is Py4JError and "Trace:" not in str(error))


def stop_session(session: SparkSession) -> None:
    """Stop it; one whose JVM is gone has nothing left to stop."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the JVM may have been killed: `spark_ended` says so
            session.stop()
    except Exception as error:  # py4j's, of whatever class
        if spark_ended() is None:
            raise
        _log.debug("stop: %s", error)


def end_spark() -> None:
    """Stop Spark, and its JVM with it, if this process has started them."""
    session = SparkSession.getActiveSession()
    if session is not None:
        stop_session(session)
    gateway: Any = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM ends with it
        while _readers:
            _readers.pop().end()
        SparkContext._gateway = SparkContext._jvm = None


def _not_started(master: str, error: Exception) -> StrobeError:
    said = [line.strip(": ") for line in str(error).splitlines() if "Exception: " in line]
    what = said[0].partition("Exception: ")[2] if said else str(error).partition("\n")[0]
    if "Could not parse Master URL" in str(error) or not _MASTER.match(master):
        return Misuse(
            f"--master {master!r} is not the address of a Spark master.",
            untouched="Nothing was started.",
            next="Use local[N], spark://HOST:PORT, or what else Spark's --master takes.",
        )
    return Failed(
        f"Spark did not start with the master {master!r}: {what}",
        untouched="Nothing was started.",
        next="Check that the master runs and can be reached from here, that its workers can reach this machine, and "
        "that spark.authenticate and its secret are the same here and there.",
    )


def check_settings(settings: Mapping[str, str], where: str) -> None:
    """What somebody wants to set, in the session or for one stage; Misuse for what would break a guarantee."""
    retained = settings.get("spark.sql.streaming.minBatchesToRetain", str(_MIN_BATCHES))
    if not retained.isdigit() or int(retained) < _MIN_BATCHES:
        raise Misuse(
            f"{where} sets spark.sql.streaming.minBatchesToRetain to {retained!r}: a snapshot could lose files before "
            "they are copied.",
            untouched="Nothing was started.",
            next=f"Leave it out, or set it to {_MIN_BATCHES} or more.",
        )
    for key in ("spark.sql.streaming.stateStore.providerClass", "spark.sql.parquet.outputTimestampType"):
        if settings.get(key, _SETTINGS[key]) != _SETTINGS[key]:
            raise Misuse(
                f"{where} sets {key} to {settings[key]!r}, but channels and snapshots need {_SETTINGS[key]!r}.",
                untouched="Nothing was started.",
                next="Leave it out.",
            )


def _without_tracebacks(session: SparkSession) -> None:
    """At the end of a session the JVM may hang up on pyspark's accumulator server before that is told to stop, which
    then prints the error of its connection."""
    server: Any = session.sparkContext._accumulatorServer
    if server is not None:
        server.handle_error = lambda request, client: _log.debug("the accumulator server's connection has ended")
    # Its serializer prints the traceback of what it cannot pickle, and then raises the error.
    util: Any = pyspark.util
    util.print_exec = lambda stream: _log.debug("what could not be pickled", exc_info=True)
    # And it prints what is wrong with an expression as one line of JSON, with all frames, before it raises the error.
    for name in _ERRORS_AS_JSON:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _start_jvm(settings: dict[str, str], directory: SessionDirectory, log: Path | None) -> None:
    """Start the JVM as pyspark does, with its output in a file."""
    config = directory.path / "log4j2.properties"
    config.write_text(_LOG4J)
    given = settings.get("spark.driver.extraJavaOptions", "")
    logging_to = "" if "log4j2.configurationFile" in given else f"-Dlog4j2.configurationFile={config.as_uri()}"
    settings["spark.driver.extraJavaOptions"] = " ".join(filter(None, (given, logging_to, jvm_option(given))))
    if "spark.driver.bindAddress" in settings:
        os.environ.setdefault("SPARK_LOCAL_IP", settings["spark.driver.bindAddress"])  # or Spark warns at each start
    out = log if log is not None else directory.path / "spark.log"
    try:
        with open(out, "ab", opener=open_private) as sink:
            gateway = launch(settings, directory, sink)
    except (PySparkRuntimeError, OSError) as e:
        said = out.read_text(errors="replace").strip().splitlines()[-5:] if out.exists() else []
        raise Failed(
            f"Spark did not start: {' / '.join(said) or e}",
            next="Check that Java 17 or newer is installed and that JAVA_HOME points to it.",
        ) from e
    SparkContext._ensure_initialized(gateway=gateway)
    guard_callbacks(gateway)

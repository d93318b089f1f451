"""Why a stage failed, as a person wants to read it, and whether it is worth trying again: a system outside may only
be away, and code that cannot be imported or sent stays so.

Spark passes errors on as text: a Python error inside a task or a reader arrives as a traceback within a Java stack.
"""

from __future__ import annotations

import re
from typing import Final

from strobe.hosts.spark.connectors.base import Unreachable
from strobe.hosts.spark.jvm.session import SparkEnded
from strobe.hosts.spark.pipeline.pipeline import StageSpec
from strobe.hosts.spark.pipeline.unpicklable import culprit
from strobe.hosts.spark.pipeline.user_lines import MODULE, declared_in, raised_in
from strobe.model.errors import Damaged, Misuse, StrobeError
from strobe.model.ids import NodeId
from strobe.model.redaction import redact

__all__ = ["in_query", "is_outage", "permanent", "reason", "refused_query", "without_spark_words"]

_SPARK_WORDS: Final = re.compile(r"\[STREAM_FAILED\] Query \[.*?\] terminated with exception: | SQLSTATE: \w{5}")
_JAVA_NAME: Final = re.compile(r"^(?:Caused by)?: (?:[a-z]\w*\.)+")
_OURS: Final = re.compile(r"^strobe(?:\.\w+)+: ")
_PLAN: Final = "=== Streaming Query ==="  # what Spark says of the query, behind the error
_TRACEBACK: Final = "Traceback (most recent call last):\n"
# Code that cannot be imported, compiled, sent or received, or that needs Spark on a worker.
_HOPELESS: Final = re.compile(
    r"(?:\w+\.)*(?:ModuleNotFoundError|ImportError|PicklingError|UnpicklingError|SyntaxError|IndentationError|NameError)\b"
    r"|AttributeError: Can't get attribute '"
    r"|(?:\w+\.)*PySparkRuntimeError: \[SESSION_OR_CONTEXT_NOT_EXISTS\]"
)
_UNREACHABLE: Final = f"{Unreachable.__module__}.{Unreachable.__qualname__}: "
# Of Kafka's retriable errors those that say that nobody answers. A topic that is gone is retriable for Kafka, too, but
# waiting does not bring it back.
_KAFKA: Final = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(?:Timeout|Disconnect|Network|BrokerNotAvailable|LeaderNotAvailable"
    r"|NotLeaderOrFollower|CoordinatorNotAvailable|CoordinatorLoadInProgress|NotEnoughReplicas)Exception"
    r"|java\.util\.concurrent\.TimeoutException: Cannot fetch record for offset"
)


def is_outage(error: BaseException) -> bool:
    """Whether it failed only because a system that it reads from or writes to does not answer."""
    if isinstance(error, StrobeError):
        return isinstance(error, Unreachable)
    text = str(error)
    return _UNREACHABLE in text or _KAFKA.search(text) is not None


def permanent(stage: NodeId, error: BaseException) -> StrobeError | None:
    """The error to end with, if it will be no better the next time."""
    if isinstance(error, Damaged | Misuse | SparkEnded):
        return error
    return Misuse(f"Stage {stage!r}: {reason(error)}") if _HOPELESS.match(reason(error)) else None


def without_spark_words(text: str) -> str:
    return _SPARK_WORDS.sub("", text)


def refused_query(stage: StageSpec, error: Exception) -> Misuse:
    """Spark will never run this query: trying again is pointless, and it is for the author to fix."""
    what = without_spark_words(str(error).splitlines()[0]) + declared_in(stage.function)
    return Misuse(
        f"Stage {stage.uid!r} (output_mode {stage.output_mode!r}): Spark refuses the query: {in_query(stage, what)}",
        untouched="Nothing was started; what the job had done before is as it was.",
        next="Change the stage, or its output_mode, and run again.",
    )


def in_query(stage: StageSpec, why: str) -> str:
    """With the other stages that the query computes: it may be the fault of any."""
    return f"{why} (in the query that computes {', '.join(stage.chained)}, too)" if stage.chained else why


def reason(error: BaseException) -> str:
    """The part of an error that a person wants to read: the Python error inside if there is one, with the line of the
    user's code, else what Java says was the cause, else the start. Without passwords that it quotes."""
    return str(error) if isinstance(error, StrobeError) else redact(_reason(error))


def _reason(error: BaseException) -> str:
    text = without_spark_words(str(error)).partition(_PLAN)[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    inside = getattr(error, "_cause", None)  # pyspark's errors have it
    if len(lines) == 1 and lines[0].endswith("awaitResult:") and isinstance(inside, BaseException):
        return _reason(inside)
    ours = [n for n in lines if _OURS.match(n)]
    if ours:
        return _OURS.sub("", ours[-1])
    python = _python_error(text)
    if python:
        return f"{python}{raised_in(error)}{_advice(python, error)}"
    java = [n for n in lines if n.startswith(("Caused by: ", ": "))]
    telling = [n for n in java if not n.endswith("awaitResult:") and "Job aborted due to stage failure" not in n]
    causes = list(dict.fromkeys(_JAVA_NAME.sub("", n) for n in telling or java))
    if causes:
        return causes[0] if len(causes) == 1 else f"{causes[0]} ({causes[-1]})"
    first = f"{type(error).__name__}: {lines[0] if lines else ''}"
    return f"{first}{raised_in(error)}{_advice(first, error)}"


def _python_error(text: str) -> str:
    """What the last traceback in the text ends with."""
    _, traceback, last = text.rpartition(_TRACEBACK)
    ends = [n for n in last.splitlines() if n[:1].strip()] if traceback else []
    if ends:
        return ends[0].removeprefix(f"{MODULE}.")
    lines = [n.strip() for n in text.splitlines()]
    errors = [n for n in lines if n.split(":")[0].endswith(("Error", "Exception")) and not n.startswith("at ")]
    return errors[-1] if errors else ""


def _advice(words: str, error: BaseException) -> str:
    if MODULE in words:
        return (
            ". On a worker a function or class of the pipeline's file is looked for by its name, as in a broadcast "
            "variable: put it into a module beside the file."
        )
    if words.startswith(("ModuleNotFoundError", "ImportError")):
        return (
            ". Spark's workers cannot import it: put it beside the pipeline's file, hand it over with --py-files, or "
            "install it where the workers run."
        )
    if "SESSION_OR_CONTEXT_NOT_EXISTS" in words:
        return (
            ". There is no Spark on workers: make columns, sessions, and UDFs with a type in words, in the stage's "
            "function, or at the top level of the pipeline's file and of modules that it imports there."
        )
    if "PicklingError" in words:
        what = culprit(error)
        return f". It uses {what}, which cannot be sent to Spark's workers." if what else ""
    return ""

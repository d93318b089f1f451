"""What a stage failed of, as a person wants to read it, and whether it is only that a system outside is away.

Spark passes errors on as text: a Python error inside a task or a reader arrives as a traceback within a Java stack.
"""

from __future__ import annotations

import re
from typing import Final

from strobe.hosts.spark.connectors.base import Unreachable
from strobe.model.errors import Misuse, StrobeError

__all__ = ["is_outage", "reason", "refused_query", "without_spark_words"]

_SPARK_WORDS: Final = re.compile(r"\[STREAM_FAILED\] Query \[.*?\] terminated with exception: | SQLSTATE: \w{5}")
_JAVA_NAME: Final = re.compile(r"^(?:Caused by)?: (?:[a-z]\w*\.)+")
_OURS: Final = re.compile(r"^strobe(?:\.\w+)+: ")
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


def without_spark_words(text: str) -> str:
    return _SPARK_WORDS.sub("", text)


def refused_query(uid: str, output_mode: str, error: Exception) -> Misuse:
    """Spark will never run this query: trying again is pointless, and it is for the author to mend."""
    what = without_spark_words(str(error).splitlines()[0])
    return Misuse(
        f"Stage {uid!r} (output_mode {output_mode!r}): Spark refuses the query: {what}",
        untouched="Nothing was started; what the job had done before is as it was.",
        next="Change the stage, or its output_mode, and run again.",
    )


def reason(error: BaseException) -> str:
    """The part of a Spark error that a person wants to read: the Python error inside if there is one, else what Java
    says was the cause, else the start."""
    if isinstance(error, StrobeError):
        return str(error)
    lines = [line.strip() for line in without_spark_words(str(error)).splitlines() if line.strip()]
    ours = [n for n in lines if _OURS.match(n)]
    if ours:
        return _OURS.sub("", ours[-1])
    python = [n for n in lines if n.split(":")[0].endswith(("Error", "Exception")) and not n.startswith("at ")]
    if python:
        return python[-1]
    java = [n for n in lines if n.startswith(("Caused by: ", ": "))]
    telling = [n for n in java if not n.endswith("awaitResult:") and "Job aborted due to stage failure" not in n]
    causes = list(dict.fromkeys(_JAVA_NAME.sub("", n) for n in telling or java))
    if causes:
        return causes[0] if len(causes) == 1 else f"{causes[0]} ({causes[-1]})"
    return f"{type(error).__name__}: {lines[0] if lines else ''}"

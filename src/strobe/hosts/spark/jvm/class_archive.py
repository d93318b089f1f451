"""An archive of the Java classes that a pipeline loads, so that Spark starts in about half of the time.

A JVM that starts Spark spends most of its first seconds on reading, parsing and checking some 15,000 classes. Java can
keep them in a file that later JVMs map into their memory (class data sharing). `make setup` makes that file once, by
running a small pipeline; `jvm_option` is how a session uses it.

Nothing depends on it. A JVM looks at the archive's header and passes over one that another Java or other jars have
made; without one, Spark starts as it always did. It is kept in the Python environment, beside the jars that it comes
from, because a JVM trusts it as much as it trusts them.
"""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["archive_path", "jvm_option"]


def archive_path() -> Path:
    return Path(sys.prefix) / "share" / "strobe" / "spark.jsa"


def jvm_option(given: str) -> str:
    """The option for a JVM that is started with the options `given`; empty if there is nothing to add."""
    archive = archive_path()
    if "SharedArchiveFile" in given or "ArchiveClassesAtExit" in given or " " in str(archive) or not archive.is_file():
        return ""
    return f"-XX:SharedArchiveFile={archive}"

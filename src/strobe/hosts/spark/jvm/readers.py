"""The server of a session's readers, as the driver sees it: see `reader_server`.

Reading its modules from a cold disk may take longer than Spark waits for a process: 0.4 s of work were seen to take
9 s. So it starts before the JVM does. Modules that other workers of Spark's need are loaded in passing, to have them
read from the disk once; the server does not keep them.
"""

from __future__ import annotations

import contextlib
import selectors
import subprocess
from pathlib import Path
from typing import Final

from strobe.hosts.spark.jvm import reader_server

__all__ = ["READER_MODULE", "SOCKET", "ReaderServer"]

SOCKET: Final = "readers.sock"
READER_MODULE: Final = "pyspark.sql.streaming.python_streaming_source_runner"
_MODULES: Final = (READER_MODULE, "strobe.hosts.spark.channel.source")
_OTHERS: Final = ("pyspark.daemon", "pyspark.worker", "pandas")
_PATIENCE: Final = 60.0  # seconds


class ReaderServer:
    """Started at once. It ends with this process at the latest."""

    def __init__(self, python: str, directory: Path) -> None:
        try:
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                [python, "-P", "-m", reader_server.__name__, str(directory / SOCKET), *_MODULES, "--", *_OTHERS],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt at the terminal is the driver's
            )
        except OSError:
            self._process = None  # Spark will report what is wrong with this Python

    def await_ready(self) -> None:
        """Wait until it serves, or has failed to."""
        if self._process is None or self._process.stdout is None:
            return
        with selectors.DefaultSelector() as selector, self._process.stdout as said:
            selector.register(said, selectors.EVENT_READ)
            selector.select(_PATIENCE)

    def end(self) -> None:
        """Readers that it has forked go on."""
        if self._process is None:
            return
        process, self._process = self._process, None
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)

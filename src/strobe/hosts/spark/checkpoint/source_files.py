"""The log of the files that a query's file source has read, `sources/I/K`, and how it is rewritten.

One line for each file, with the entry K to which it belongs; a file that is in no line is new. An entry must have a
file: one that has none left gets the name of a file that does not exist, which Spark passes over.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from strobe.hosts.shared.durable import write_durably

__all__ = ["rewrite"]

_NOTHING: Final = ".strobe-nothing-"


def rewrite(log: Path, version: str, lines: Sequence[str], directory: str) -> None:
    """Put other lines into a log, of files that are in `directory` or below it."""
    number = int(log.name)
    if not lines:
        nothing = {"path": f"{directory}/{_NOTHING}{number}", "timestamp": 0, "batchId": number}
        lines = [json.dumps(nothing, separators=(",", ":"), ensure_ascii=False)]
    log.with_name(f".{log.name}.crc").unlink(missing_ok=True)  # Spark's, of the old content
    write_durably(log, "\n".join([version, *lines]))

"""Logs that only their owner may read, without passwords in them."""

from __future__ import annotations

import logging
from typing import Any

from strobe.cli.output import printable
from strobe.model.redaction import redact
from strobe.store.private import open_private

__all__ = ["PrivateLogFile", "Redacted", "Shown"]


class PrivateLogFile(logging.FileHandler):
    def _open(self) -> Any:
        return open(self.baseFilename, self.mode, encoding="utf-8", opener=open_private)


class Redacted(logging.Formatter):
    """A formatter that removes passwords: lines and tracebacks may quote settings of Spark and databases."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


class Shown(Redacted):
    """The same for a terminal, which nothing that is logged can control."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))

"""A journal as bytes."""

from __future__ import annotations

from io import BytesIO

from strobe.verify.journal import Journal, JournalWriter

__all__ = ["journal_bytes"]


def journal_bytes(journal: Journal) -> bytes:
    """The journal as it would stand on disk."""
    buffer = BytesIO()
    with JournalWriter(buffer, journal.header) as writer:
        for event in journal.events:
            writer.write(event)
    return buffer.getvalue()

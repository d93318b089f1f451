"""Opens the page in the browser without a token on a command line, which every user of the machine can read.

The browser is given a file that only its owner can read, and that leads to the address.
"""

from __future__ import annotations

import contextlib
import html
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["doorway"]


@contextlib.contextmanager
def doorway(url: str) -> Iterator[str]:
    """The address of a file that leads to `url`; it is there for as long as the block."""
    with tempfile.TemporaryDirectory(prefix="strobe-ui-", ignore_cleanup_errors=True) as directory:  # mode 0700
        file = Path(directory, "open.html")
        file.touch(0o600)
        file.write_text(
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>Strobe</title>'
            f'<meta http-equiv="refresh" content="0;url={html.escape(url)}">'
            f'<p><a href="{html.escape(url)}">Strobe</a></p></html>'
        )
        yield file.as_uri()

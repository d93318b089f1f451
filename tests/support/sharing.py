"""How the tests are shared out among pytest's workers: by file, a class on its own, and each document on its own.

A worker takes one unit after the other, so none may be long when the others are done. The tests of a file share
fixtures, such as a job that has run, and stay together. A class brings its own: the contract of a sink is one for each
way to deliver. The pages of the documentation share nothing, and together they take longer than anything else.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

__all__ = ["share_out", "unit_of"]

_APART = ("tests/test_docs.py::test_a_document_does_what_it_says",)


def unit_of(nodeid: str) -> str:
    """What is run by one worker, in one go."""
    name, _, case = nodeid.partition("[")  # a case may be called anything
    return nodeid if case and name in _APART else name.rpartition("::")[0]


def share_out(config: object, log: object) -> Any:
    """As `--dist loadfile`, with these units."""
    scheduler = LoadFileScheduling(config, log)
    scheduler._split_scope = unit_of
    return scheduler

"""One owner for each thing: what only some modules may do, told by what their source says.

A rule is a pattern and the modules in which it may stand, each with the reason. A module that needs no exception any
more is found, too, so the lists stay short.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "strobe"


@dataclass(frozen=True)
class Rule:
    """`pattern` may stand in the `owners` alone: module to reason."""

    what: str
    pattern: str
    owners: Mapping[str, str]


RULES = (
    Rule(
        "a file is put in place of another one",
        r"\bos\.replace\(",
        {
            "hosts/shared/durable.py": "hosts do it here: whole, durable, the directory synced",
            "store/filesystem.py": "the store does it here, with crash points",
            "hosts/spark/home/job_home.py": "a lock file goes in place while it is held",
            "hosts/spark/jvm/jars.py": "a download; one that is lost is made again",
            "look/cache.py": "a cache; what is lost is made again",
            "cli/sql_output.py": "what a user has asked for, into a file of his",
        },
    ),
    Rule(
        "a time becomes text, or text a time",
        r"strftime\(|fromisoformat\(|\.isoformat\(",
        {
            "store/times.py": "UTC with milliseconds",
            "store/snapshots.py": "an age is compared",
            "cli/sql_output.py": "values of a user's columns",
            "hosts/spark/pipeline/stage_options.py": "a time that a user gives",
            "hosts/spark/plans/text.py": "literals of a query",
            "hosts/spark/connectors/dead_letters.py": "values of a user's rows",
            "hosts/spark/connectors/delta/actions.py": "bounds of a user's columns, as Delta spells them",
            "hosts/spark/connectors/postgres/source.py": "values of a user's columns",
            "hosts/spark/connectors/postgres/types.py": "values of a user's columns",
        },
    ),
    Rule(
        "a pause grows with failures",
        r"(?i)pause \*= |pause \* [12](?:\.\d)?\b|\* pause\b|\*\* min\(",
        {
            "model/backoff.py": "for everybody",
            "hosts/live/wire/datagrams.py": "retransmission goes by the round trip",
            "hosts/spark/stage/pausing.py": "it grows with the time in which nothing comes",
        },
    ),
    Rule(
        "a text is cut to a length",
        r"\] ?\+ ?\"…\"|\]\}…",
        {
            "model/text.py": "for everybody",
            "hosts/spark/connectors/dead_letters.py": "a row in an error, cut to so many characters besides the mark",
            "hosts/spark/plans/text.py": "with a hash of the whole behind it",
        },
    ),
    Rule(
        "content is made durable",
        r"\bos\.fsync\(",
        {
            "hosts/shared/durable.py": "for hosts",
            "store/filesystem.py": "for the store",
            "store/line_file.py": "a line is appended",
        },
    ),
)


def modules() -> Iterator[tuple[str, str]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).as_posix(), path.read_text(encoding="utf-8")


def strangers(rule: Rule, found: Iterator[tuple[str, str]]) -> list[str]:
    """Modules that do what only the owners may, and owners that do not do it."""
    doing = {name for name, source in found if re.search(rule.pattern, source)}
    return sorted(doing ^ set(rule.owners))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.what)
def test_only_its_owners_do_it(rule: Rule) -> None:
    assert strangers(rule, modules()) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.what)
def test_a_stranger_and_an_idle_owner_are_found(rule: Rule) -> None:
    sources = dict(modules())
    owner = next(iter(rule.owners))
    assert strangers(rule, iter({**sources, "hosts/new.py": sources[owner]}.items())) == ["hosts/new.py"]
    assert strangers(rule, iter({**sources, owner: ""}.items())) == [owner]

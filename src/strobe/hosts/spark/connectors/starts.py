"""Which start of which copy of a home wrote last.

A copy of a home knows all that the original knows, so nothing in it tells the two apart, and on another machine nobody
can see whether the original is still there. What tells them apart is what happens after the copy was made. Each start
makes up a name, notes it durably in its home, and then at the place that it writes to. A home may write to a place only
if it knows the name that stands there. So of a home and its copies the first that starts goes on, and every other one
is refused from then on, wherever it is. A home that was moved knows all names.

A name begins with the incarnation of its driver, so a driver that was given up finds a newer one, and is fenced off.

In a directory the names are a chain: `after-OLD` holds the name that came after OLD. Only one can make that file.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from strobe.hosts.shared.durable import fsync, write_durably
from strobe.model.errors import Fenced, Misuse
from strobe.model.ids import Incarnation

__all__ = ["STARTS", "Start", "begin", "check_start", "follow", "last_start"]

STARTS: Final = "starts"
_FIRST: Final = "nothing"  # before the first name
_KEPT: Final = 64  # names: a driver that was given up cannot be older than so many starts


@dataclass(frozen=True)
class Start:
    """`name` is this one's; `known` are those of this home, its own included."""

    name: str
    known: frozenset[str]
    kept: Path


def begin(kept: Path, incarnation: Incarnation) -> Start:
    """A new start of the home that has the file `kept`, durably."""
    place = _of_home(kept)
    place.mkdir(parents=True, exist_ok=True)
    fsync(place.parent)
    name = f"{incarnation}-{uuid.uuid4().hex}"
    write_durably(place / name, "")
    known = _known(kept)
    _prune(place, {n: n for n in known})
    return Start(name, known, kept)


def check_start(last: str | None, kept: Path, incarnation: Incarnation, what: str) -> None:
    """Misuse if `last`, the name that stands at the place, is of another home's start; Fenced if it is of a newer
    driver. `what` is the sink in words."""
    if last is None:
        return
    if last not in _known(kept):
        raise Misuse(
            f"{what} was written last by a start of this job that this home knows nothing of: the home was copied, or "
            "brought back from a backup, and the other one has gone on since.",
            untouched="Nothing was written.",
            next="Run the job with the home that wrote last. To go on from here, restore a snapshot under another name "
            "(`strobe run -s SNAPSHOT --name NAME`), with another table, directory or topic.",
        )
    if _incarnation(last) > incarnation:
        raise Fenced(
            f"{what}: incarnation {_incarnation(last)} of this job has taken over from incarnation {incarnation}.",
            untouched="Nothing was written.",
            next="A newer run of this job has taken over; this one must stop.",
        )


# ── in a directory ──────────────────────────────────────────────────────────────────────────────────────────────────


def follow(place: Path, kept: Path, incarnation: Incarnation, what: str) -> None:
    """Note in the directory `place` that this home writes there from now on; see `check_start`."""
    check_start(last_start(place), kept, incarnation, what)
    start, chain = begin(kept, incarnation), place / STARTS
    chain.mkdir(exist_ok=True)
    fsync(place)
    while True:
        last = last_start(place)
        check_start(last, kept, incarnation, what)
        link = chain / f"after-{last or _FIRST}"
        if write_durably(link, start.name, fresh=chain / f".{start.name}", replace=False):
            break  # else somebody has just come first
    _prune(chain, {f"after-{old}": new for old, new in _links(place).items()})


def last_start(place: Path) -> str | None:
    """The name at the end of the chain."""
    links = _links(place)
    return max((n for n in links.values() if n not in links), key=_incarnation, default=None)


def _links(place: Path) -> dict[str, str]:
    found = {}
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in (place / STARTS).iterdir():
            if path.name.startswith("after-"):
                with suppress(FileNotFoundError):  # it was pruned
                    found[path.name.removeprefix("after-")] = path.read_text(errors="replace")
    return found


# ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_home(kept: Path) -> Path:
    return kept.with_name(f"{kept.name}-{STARTS}")


def _known(kept: Path) -> frozenset[str]:
    try:
        return frozenset(p.name for p in _of_home(kept).iterdir() if not p.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()


def _incarnation(name: str) -> int:
    number = name.partition("-")[0]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 19 else 0


def _prune(directory: Path, names: dict[str, str]) -> None:
    """`names`: file to the name of the start that it stands for."""
    for file in sorted(names, key=lambda f: _incarnation(names[f]))[:-_KEPT]:
        (directory / file).unlink(missing_ok=True)

"""What the options of a stage may say: where it begins, which columns have other names, what becomes of bad files."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from strobe.model.errors import Misuse
from strobe.model.suggest import did_you_mean

__all__ = [
    "EARLIEST", "FAIL", "LATEST", "SET_ASIDE", "SNAPSHOT", "Start", "check_bad_files", "check_chain", "check_conf",
    "check_positive", "check_renamed", "check_start",
]  # fmt: skip

Start = str | datetime  # one of the words below, or a time
SNAPSHOT, EARLIEST, LATEST = "snapshot", "earliest", "latest"
FAIL, SET_ASIDE = "fail", "set_aside"


def check_start(start: object, where: str, *, channels: bool) -> Start:
    """`channels`: whether the stage reads other stages."""
    if start in (SNAPSHOT, EARLIEST):
        return str(start)
    if start != LATEST:
        start = _time(start, where)
    if channels:
        raise Misuse(
            f"{where}: start={start if start == LATEST else str(start)!r} is for stages that read a source only, and "
            "this one reads other stages.",
            next="Use 'snapshot' or 'earliest' here, and say where the source begins in the stage that reads it, or "
            "by the source's own options.",
        )
    return start


def _time(start: object, where: str) -> datetime:
    try:
        found = start if isinstance(start, datetime) else datetime.fromisoformat(str(start))
    except ValueError:
        raise Misuse(
            f"{where}: start {start!r} is not one of snapshot, earliest, latest, nor a time.",
            next="A time is a datetime, or a text such as 2026-03-01T12:00:00+01:00.",
        ) from None
    if found.tzinfo is None:
        raise Misuse(f"{where}: start {str(start)!r} has no time zone.", next="Add one, +00:00 for UTC.")
    return found


def check_renamed(renamed: Any, where: str) -> dict[str, str | None]:
    given = {} if renamed is None else renamed
    if not isinstance(given, Mapping) or not all(
        isinstance(old, str) and old and (new is None or (isinstance(new, str) and new)) for old, new in given.items()
    ):
        raise Misuse(
            f"{where}: renamed={renamed!r} is not legal.",
            next='Give the new name of each column by its old one, {"old": "new"}, or None if it is gone.',
        )
    return dict(given)


def check_bad_files(bad_files: object, where: str) -> str:
    if bad_files not in (FAIL, SET_ASIDE):
        raise Misuse(
            f"{where}: bad_files={bad_files!r} is not legal.",
            next=f"{did_you_mean(str(bad_files), [FAIL, SET_ASIDE])}Use {FAIL!r}, or {SET_ASIDE!r} to go on without "
            "input files that cannot be read.",
        )
    return str(bad_files)


def check_chain(chain: object, where: str) -> bool | None:
    if chain is None or isinstance(chain, bool):
        return chain
    raise Misuse(f"{where}: chain={chain!r} is not legal.", next="Use True or False.")


def check_positive(value: int | None, name: str, where: str) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise Misuse(f"{where}: {name}={value!r} is not legal: it must be a whole number of at least 1.")
    return value


def check_conf(conf: Mapping[str, Any] | None, where: str) -> dict[str, str]:
    """Spark's settings are text; numbers and booleans are written as Spark writes them."""
    if conf is not None and not isinstance(conf, Mapping):
        raise Misuse(f"{where}: conf={conf!r} is not legal.", next='Give settings by name, {"spark.x": "1"}.')
    settings = {}
    for key, value in (conf or {}).items():
        if not isinstance(key, str) or not isinstance(value, str | bool | int | float):
            raise Misuse(f"{where}: conf has {key!r}: {value!r}, which is not a Spark setting.")
        settings[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return settings

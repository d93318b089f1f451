"""`strobe inspect --export`: what a snapshot holds, as Parquet. Needs Spark, which reading state does."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

from strobe.cli.output import Session
from strobe.hosts.spark.jvm.java import find_java
from strobe.hosts.spark.jvm.session import passing_session
from strobe.hosts.spark.snapshot.export import CONTENTS, Exported, export_snapshot
from strobe.store.filesystem import FilesystemStore
from strobe.store.locate import Located

__all__ = ["export"]


def export(session: Session, found: Located, directory: str) -> int:
    """Write the export and say what it is. 1 if something in the snapshot could not be read."""
    os.environ["JAVA_HOME"] = str(find_java())
    objects = found.store.objects
    home = objects.root if isinstance(objects, FilesystemStore) else session.home
    if not session.json:
        session.say("Spark starts, to read the state …")
    with passing_session("strobe-export", "local[2]") as spark:
        written = export_snapshot(found, Path(directory).absolute(), home, spark)
    failed = [each for each in written if each.error]
    if session.json:
        session.answer({"directory": str(Path(directory).absolute()), "contents": [asdict(e) for e in written]})
    else:
        _show(session, written, directory)
    return 1 if failed else 0


def _show(session: Session, written: tuple[Exported, ...], directory: str) -> None:
    for each in written:
        if each.error:
            session.say(("✗ ", "red"), f"{each.path}: {each.error}")
        else:
            whose = f"{each.operator} of {each.of}" if each.kind == "state" else f"to {', '.join(each.to)}"
            session.say(f"{each.rows:>10,} rows  {each.path}  ({each.kind}, {whose})")
    if not written:
        session.say("The snapshot holds no state and no rows in flight.")
    session.say(f"What each file is: {Path(directory) / CONTENTS}")

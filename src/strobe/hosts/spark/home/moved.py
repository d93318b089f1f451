"""A project that was moved: where its files were, and where they are now.

A job's home notes where it stood when it last ran, and so does every snapshot. If it stands elsewhere now, what was
beside it (source directories, tables of sinks) has moved along if it is found at the same place *relative to the home*.
Nothing else is guessed from names.

*File sources.* Spark's file source knows the files that it has read by their full paths, in a log of its own below
`sources/` of a query's checkpoint. If a directory is read under another path, that log must say so before the query
starts: Spark would refuse the old paths ("Wrong basePath"), or take every file for a new one and read it again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from strobe.model.cut import Json
from strobe.model.errors import Damaged, Misuse
from strobe.model.ids import NodeId
from strobe.model.paths import check_absolute, check_relative
from strobe.model.strict_json import parse

__all__ = [
    "LOCAL", "FileSource", "Homes", "file_sources", "find_moved", "is_below", "relocate_position",
]  # fmt: skip

_GLOB: Final = set("{}[]*?\\")
LOCAL: Final = "file://"  # what Spark's names of local files begin with
_SAME_TIME: Final = 2000  # milliseconds; some file systems keep no more than every other second


@dataclass(frozen=True)
class Homes:
    """Where the job's home stood when something was noted, and where it stands now. None: that is not known."""

    before: Path | None
    now: Path | None

    @staticmethod
    def of(noted: Json, now: Path | None) -> Homes:
        try:
            before = None if noted is None else Path(check_absolute(noted, "home"))
        except Misuse:  # no job notes such a place
            before = None
        return Homes(before, now if now is None else now.absolute())

    @property
    def moved(self) -> bool:
        return self.before is not None and self.now is not None and self.before != self.now

    def place(self, path: str | Path) -> Path | None:
        """The same place, seen from where the home is now; None if the home has not moved."""
        if self.before is None or self.now is None or self.before == self.now:
            return None
        return Path(os.path.normpath(self.now / os.path.relpath(path, self.before)))


def relocate_position(position: Json, homes: Homes, *, fork: bool = False) -> Json:
    """What a sink said at a snapshot, with the path at which its directory is now. A fork leaves the original's place
    alone, so for one the path changes only if there is nothing at the old one."""
    if not isinstance(position, dict) or not isinstance(position.get("path"), str):
        return position
    try:
        was = Path(check_absolute(position["path"]))
    except Misuse:
        return position  # whose sink says what is wrong with it
    now = homes.place(was)
    if now is None or not now.exists() or (fork and was.exists()):
        return position
    return {**position, "path": str(now)}


# ── file sources ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class FileSource:
    """A local directory that a stage reads. `given` is the path as the stage's code has it; `root` is the directory in
    full, spelled as in Spark's log; `pattern`: the path has wildcards, and `root` is what stands before them."""

    given: str
    root: str
    pattern: bool

    @property
    def directory(self) -> Path:
        return Path(unquote(self.root))

    @property
    def relative(self) -> bool:
        return not self.given.startswith("/") and ":/" not in self.given


def file_sources(leaves: Sequence[Any], jvm: Any, configuration: Any) -> list[Json]:
    """The local directories that these leaves of a plan read, in the plan's order, as they are noted."""
    found: list[Json] = []
    for leaf in leaves:
        if leaf.getClass().getSimpleName() != "StreamingRelation" or not leaf.sourceName().startswith("FileSource"):
            continue
        given = leaf.dataSource().options().get("path")
        if not given.isDefined():
            continue
        path = jvm.org.apache.hadoop.fs.Path(given.get())
        path = path.getFileSystem(configuration).makeQualified(path)
        pattern = False
        if path.toUri().getScheme() != "file":
            continue
        while _GLOB & set(path.toUri().getPath()):
            path, pattern = path.getParent(), True
        found.append(asdict(FileSource(given.get(), path.toUri().getRawPath(), pattern)))
    return found


def find_moved(
    uid: NodeId, before: Json, after: Json, homes: Homes, logs: Callable[[], Iterable[str]], *, warnings: list[str]
) -> tuple[dict[str, str], Misuse | None]:
    """Which directories of the stage are elsewhere now, as old and new root, and why it cannot go on if it cannot.
    `before` and `after` are what was noted of its file sources, `logs` are Spark's own of the files that were read."""
    moved: dict[str, str] = {}
    old, new = _read(before), _read(after)
    if len(old) != len(new):
        return moved, None  # the stage reads other sources now, which is for others to say
    for was, now in zip(old, new, strict=True):
        if was.root == now.root:
            continue
        along = homes.place(was.directory) == now.directory
        if along or not was.directory.exists():
            other = None if along else _other_file(was, now, logs())
            if other is not None:
                return {}, _other_files(uid, was, now, other)
            moved[was.root] = now.root
            warnings.append(f"{uid}: the files that it has read in {was.directory} are in {now.directory} now.")
        elif was.relative and was.given == now.given:
            return {}, _elsewhere(uid, was, now)
        elif now.pattern:
            warnings.append(
                f"{uid}: it read {was.given}, and now reads {now.given}: every file there is a new one, files that it "
                "has not read yet are left unread."
            )
        else:
            return {}, _other_directory(uid, was, now)
    return moved, None


def _read(noted: Json) -> list[FileSource]:
    try:
        found = [FileSource(str(n["given"]), str(n["root"]), bool(n["pattern"])) for n in noted or ()]
        for source in found:
            check_absolute(unquote(source.root))
        return found
    except (TypeError, KeyError, Misuse):
        return []


def _other_file(was: FileSource, now: FileSource, logs: Iterable[str]) -> Path | None:
    """A file in the new directory that has the name of one that was read, and is another one by its time."""
    for line in (line for log in logs for line in log.split("\n") if line.startswith("{")):
        try:
            entry = parse(line.encode())
            name = str(entry.get("path", "")).removeprefix(LOCAL)
            below = check_relative(unquote(name[len(was.root.rstrip("/")) + 1 :])) if is_below(name, was.root) else None
            noted = int(entry["timestamp"]) if below is not None else 0
        except (AttributeError, LookupError, TypeError, ValueError, Misuse) as error:
            raise Damaged(
                f"A log of the files that were read cannot be read: {error!s:.200}.",
                untouched="Nothing was changed.",
                next="Restore another snapshot.",
            ) from error
        if below is not None:
            file = now.directory / below
            if file.exists() and abs(file.stat().st_mtime_ns // 1_000_000 - noted) > _SAME_TIME:
                return file
    return None


def _other_files(uid: NodeId, was: FileSource, now: FileSource, other: Path) -> Misuse:
    return Misuse(
        f"Stage {uid!r} has read the files in {was.directory}, which is gone, and now reads {now.directory}. That is "
        f"not the same directory moved: {other.name} there is of another time than the one that was read.",
        untouched="Nothing was changed.",
        next="If they are the same files, copy them again so that they keep their times (cp -a, rsync -a). If not, "
        "give the stage a new uid, then it reads every file.",
    )


def _elsewhere(uid: NodeId, was: FileSource, now: FileSource) -> Misuse:
    above = str(was.directory).removesuffix(os.path.normpath(was.given).partition("*")[0].rstrip("/")) or "/"
    return Misuse(
        f"Stage {uid!r} reads {was.given!r}, which is {now.directory} if one stands here; it has read "
        f"{was.directory}, which is still there.",
        untouched="Nothing was changed.",
        next=f"Run it from {above} again, or write the path of the directory in full.",
    )


def _other_directory(uid: NodeId, was: FileSource, now: FileSource) -> Misuse:
    return Misuse(
        f"Stage {uid!r} has read the files in {was.directory}, and now reads {now.directory}. Spark's file source "
        "cannot change its directory.",
        untouched="Nothing was changed.",
        next="Read the same directory as before; or move it, not the files one by one, then the stage goes on where it "
        "was; or give the stage a new uid, then it reads every file.",
    )


def is_below(name: str, root: str) -> bool:
    """Whether the file of that name is in the directory `root`, or below it."""
    return name.startswith(f"{root.rstrip('/')}/")

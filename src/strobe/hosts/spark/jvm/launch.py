"""How the JVM is started: settings reach it through files that only their owner may read, never on a command line.

Every user of a machine can read the command line of every process. pyspark hands settings to spark-submit as arguments,
passwords among them. Here they are in a properties file, and Java's options in an argument file (`java @FILE`). Both
are in the session's directory, and gone once the JVM is up.

spark-submit reads one properties file only: `spark-defaults.conf`, or the one that PYSPARK_SUBMIT_ARGS names, if there
is one. So its lines come first in ours, and what the session is set to overrides them.

Spark keeps rows of shuffles and working copies of states below `spark.local.dir`, open to everybody, and leaves them
behind when it is killed. Unless somebody says where, they go into the session's directory.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway

from strobe.hosts.spark.jvm.session_directory import SessionDirectory, write_private
from strobe.model.errors import Misuse

__all__ = ["launch"]

_SUBMIT: Final = "PYSPARK_SUBMIT_ARGS"
_LOCAL_DIRS: Final = "SPARK_LOCAL_DIRS"
_FILE_OPTION: Final = "--properties-file"
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"


def launch(settings: Mapping[str, str], directory: SessionDirectory, output: BinaryIO) -> Any:
    """The gateway to a JVM with these settings. Its output goes to `output`; it holds the directory's lock."""
    theirs, arguments = _own_file(shlex.split(os.environ.get(_SUBMIT, "pyspark-shell")))
    properties, options = directory.path / "spark.properties", directory.path / "java.options"
    given = settings.get(_JAVA_OPTIONS, "")
    write_private(options, "".join(f"{_java_argument(option)}\n" for option in shlex.split(given)))
    started_with = {**settings, _JAVA_OPTIONS: f"@{options}"} if given else settings
    write_private(properties, f"{theirs}\n{_properties(started_with)}")
    environment = {_SUBMIT: shlex.join([_FILE_OPTION, str(properties), *arguments])}
    if _LOCAL_DIRS not in os.environ and "spark.local.dir" not in f"{theirs}{''.join(settings)}":
        environment[_LOCAL_DIRS] = str(directory.path / "local")
    try:
        with _environment(environment):
            return launch_gateway(  # type: ignore[no-untyped-call]
                None, {"stdout": output, "stderr": output, "pass_fds": (directory.lock,)}
            )
    finally:
        properties.unlink()
        options.unlink()


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables for the start only: other sessions that this process starts have directories of their own."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _own_file(arguments: list[str]) -> tuple[str, list[str]]:
    """The text of the properties file that spark-submit would read, and the arguments without its name."""
    place = Path(os.environ.get("SPARK_CONF_DIR") or f"{_find_spark_home()}/conf", "spark-defaults.conf")
    rest: list[str] = []
    named = False
    words = iter(arguments)
    for word in words:
        if word == _FILE_OPTION or word.startswith(f"{_FILE_OPTION}="):
            place, named = Path(word.partition("=")[2] or next(words, "")), True
        else:
            rest.append(word)
    try:
        return place.read_text(encoding="utf-8"), rest
    except FileNotFoundError:
        if not named:
            return "", rest
        why = "it is not there"
    except (OSError, ValueError) as error:
        why = str(error)
    raise Misuse(
        f"Spark's settings in {place} cannot be read: {why}.",
        untouched="Nothing was started.",
        next=f"Fix the file, or name another one in {_SUBMIT}.",
    )


def _properties(settings: Mapping[str, str]) -> str:
    """Settings in the form that `java.util.Properties` reads."""
    return "".join(f"{_escaped(key, ' :=')}={_escaped(value, '')}\n" for key, value in settings.items())


def _escaped(text: str, also: str) -> str:
    names = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
    escaped = "".join(names.get(c) or (f"\\{c}" if c in f"\\{also}" else c) for c in text)
    return f"\\{escaped}" if escaped[:1] in (" ", "#", "!") else escaped


def _java_argument(option: str) -> str:
    """A word in the form that Java's launcher reads from an argument file."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'

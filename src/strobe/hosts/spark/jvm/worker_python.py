"""The Python that Spark starts its workers with, on this machine.

Spark puts `pyspark.zip` before everything else on its workers' module path. A zip holds no compiled modules, so
each worker that starts compiles the part of pyspark that it needs: 0.9 s of processor time instead of 0.25 s, for
each of the three or four processes that a query with a channel starts, and Spark gives up on one that takes ten
seconds. The package that the driver itself has imported is the same, compiled: the workers are made to take that.

A process that plans the batches of a stream is not started at all, but asked for: see `reader_server`. Spark's daemons
for planning have the modules of channels loaded: see `planning_daemon`.

What else is on the path comes before it, as in the driver: a module of the user's hides an installed one.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pyspark

from strobe.hosts.spark.jvm import planning_daemon, reader_stub
from strobe.hosts.spark.jvm.planning_daemon import DAEMON, PLANNING
from strobe.hosts.spark.jvm.readers import READER_MODULE, SOCKET

__all__ = ["worker_python"]

_SCRIPT = """\
#!/bin/sh
set -f
IFS=:
first=
for entry in $PYTHONPATH; do
  case $entry in
    '' | */pyspark.zip | */py4j-*-src.zip) ;;
    *) first=$first$entry: ;;
  esac
done
export PYTHONPATH="$first"{packages}
if [ "$1 $2" = "-m {reader}" ]; then
  exec {python} -I -S {stub} {socket} {reader}
fi
if [ "$1 $2" = "-m {daemon}" ]; then
  case $3 in {planning}) shift 2; exec {python} -m {planner} "$@" ;; esac
fi
exec {python} "$@"
"""


def worker_python(python: str, place: Path) -> str:
    """A program in `place` that is `python` with the driver's own pyspark; `python` itself where that cannot be had."""
    packages = Path(pyspark.__file__).parent.parent
    if os.name != "posix" or not packages.is_dir() or ":" in str(packages):
        return python
    script = place / "python"
    script.write_text(
        _SCRIPT.format(
            packages=shlex.quote(str(packages)),
            python=shlex.quote(python),
            reader=READER_MODULE,
            daemon=DAEMON,
            planning="|".join(PLANNING),
            planner=planning_daemon.__name__,
            stub=shlex.quote(reader_stub.__file__),
            socket=shlex.quote(str(place / SOCKET)),
        )
    )
    script.chmod(0o700)
    return str(script) if os.access(script, os.X_OK) else python  # a directory may forbid programs

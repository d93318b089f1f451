"""Spark's daemon for one of its planning modules, with the modules of Strobe's own sources loaded before it forks.

For each stream of a Python source Spark asks a worker to make the source, and for each query another one to plan its
reading. Each is a fork of a daemon that has loaded pyspark only, so every one of them would import numpy and Arrow for
itself: a fifth of a second of processor time, twice for each channel that is read. Spark's script (`worker_python`)
runs this module in place of `pyspark.daemon`; modules are looked for in the same places, and the rest is Spark's.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import runpy
from typing import Final

__all__ = ["DAEMON", "PLANNING"]

DAEMON: Final = "pyspark.daemon"
PLANNING: Final = ("pyspark.sql.worker.create_data_source", "pyspark.sql.worker.plan_data_source_read")
_LOADED: Final = "strobe.hosts.spark.channel.source"

if __name__ == "__main__":
    with contextlib.suppress(ImportError):  # the worker that needs it says so
        importlib.import_module(_LOADED)
    gc.collect()
    gc.freeze()  # a collection in a fork would write to every object, and end the sharing
    runpy.run_module(DAEMON, run_name="__main__", alter_sys=True)

"""The library that moves a process's wall clock."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import chaos

SOURCE = Path(chaos.__file__).with_name("clock.c")
LOOK = """
import sys, threading, time
wall, steady = time.time(), time.monotonic()
print("looked", flush=True)
sys.stdin.readline()
print(time.time() - wall, time.monotonic() - steady)
done = threading.Event()
done.wait(0.01)                              # deadlines are not moved
import queue
try:
    queue.Queue().get(timeout=0.01)
except queue.Empty:
    print("waited")
import ctypes                                # as librdkafka waits
sys.stdin.readline()
condition, mutex = (ctypes.c_byte * 64)(), (ctypes.c_byte * 64)()
deadline = (ctypes.c_int64 * 2)(int(time.time()) + 1, 0)
c = ctypes.CDLL(None)
c.mtx_init(mutex, 0), c.cnd_init(condition), c.mtx_lock(mutex)
c.cnd_timedwait(condition, mutex, deadline)
print("waited in C")
"""


def test_the_wall_clock_jumps_under_a_running_process_and_nothing_else_does(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library, clock = tmp_path / "clock.so", tmp_path / "clock"
    command = [
        compiler,
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        "-o",
        str(library),
        str(SOURCE),
        "-ldl",
    ]
    subprocess.run(command, check=True)
    clock.write_bytes(struct.pack("@q", 0))
    env = {**os.environ, "LD_PRELOAD": str(library), "CHAOS_CLOCK": str(clock)}
    process = subprocess.Popen(
        [sys.executable, "-c", LOOK], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "looked\n"
    jump(clock, -7200)
    process.stdin.write("\n")
    process.stdin.flush()
    wall, steady = map(float, process.stdout.readline().split())
    assert wall == pytest.approx(steady - 7200, abs=1)
    assert 0 <= steady < 60
    assert process.stdout.readline() == "waited\n"
    jump(clock, 7200)
    said, _ = process.communicate("\n", timeout=60)
    assert said == "waited in C\n"


def jump(clock: Path, seconds: int) -> None:
    with clock.open("r+b") as file:
        file.write(struct.pack("@q", seconds))

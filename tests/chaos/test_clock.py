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
    assert process.stdout is not None
    assert process.stdout.readline() == "looked\n"
    with clock.open("r+b") as file:
        file.write(struct.pack("@q", -7200))
    said, _ = process.communicate("\n", timeout=60)
    wall, steady = map(float, said.splitlines()[0].split())
    assert wall == pytest.approx(steady - 7200, abs=1)
    assert 0 <= steady < 60
    assert said.splitlines()[1] == "waited"

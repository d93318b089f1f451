"""A disk without room for what a command says, or for a job's log."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from strobe.store.layout import JobLayout

FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="only where there is a device that is always full")


def test_a_log_that_cannot_be_written_is_no_traceback(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from strobe.cli.run import _Logs

    log = tmp_path / JobLayout("full").driver_log
    log.parent.mkdir(parents=True)
    os.symlink(FULL, log)
    with _Logs(tmp_path, "full", level=logging.CRITICAL):
        logging.getLogger("strobe.job").error("there is no room for this")
        logging.getLogger("py4j").error("nor for this")
    assert capfd.readouterr().err == ""


def test_output_that_cannot_be_written_is_one_sentence() -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "strobe.cli.main", "sim", "list"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert done.stderr.decode().splitlines()[0].startswith("error: There is no room left on the disk")
    assert b"Traceback" not in done.stderr

"""`strobe live up --metrics`: a system of real processes, scraped while it runs."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples" / "live"
PATIENCE = 120.0  # seconds; only a test that fails waits for so long


def test_a_live_system_serves_its_metrics(tmp_path: Path) -> None:
    for name in ("bank.py", "bank.toml"):
        shutil.copy(EXAMPLES / name, tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "strobe.cli.main", "live", "up", "bank.toml", "--metrics", "0", "--interval", "0.2"],
        cwd=tmp_path, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said = re.fullmatch(r"metrics (http://127\.0\.0\.1:\d+/metrics)\n", process.stdout.readline())
        assert said is not None
        deadline, found = time.monotonic() + PATIENCE, ""
        while 'strobe_live_last_completed_checkpoint_id{system="bank"}' not in found:
            assert time.monotonic() < deadline, found
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(said[1], timeout=30) as answer:
                found = answer.read().decode()
            time.sleep(0.05)
        assert 'strobe_live_running{system="bank"} 1.0' in found
        assert len(re.findall(r"^strobe_live_node_running\{.*\} 1\.0$", found, re.MULTILINE)) == 3
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 0

"""A Chromium for the tests of the page, in the shape of a server as .ci/run wants it: the file `address` names the
program. Tests start it themselves; this only sees to it that it is there, and installs it where it may."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def main() -> int:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
    found = find()
    if found is None and os.getuid() == 0 and shutil.which("apt-get"):
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for arguments in (["update", "-qq"], ["install", "-qq", "-y", "--no-install-recommends", "chromium"]):
            subprocess.run(["apt-get", *arguments], check=False, stdout=sys.stderr, env=env)
        found = find()
    if found is None:
        sys.exit("No Chromium here, and none could be installed. On Debian: apt-get install chromium")
    Path("address.new").write_text(found)
    os.replace("address.new", "address")
    ended.wait()
    return 0


def find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


if __name__ == "__main__":
    sys.exit(main())

"""A throw-away S3 API on loopback: moto's, in memory, one request at a time, so that a conditional put is as atomic as
on a real store. A server as .ci/run wants it: in the foreground, its address in the file `address` of the folder where
it was started, until SIGTERM.

Buckets are made by whoever needs one; any credentials will do.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

os.environ.setdefault("MOTO_S3_DEFAULT_MAX_KEYS", "7")  # so that lists have several pages


def main() -> NoReturn:
    signal.signal(signal.SIGTERM, _end)
    try:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server
    except ImportError as error:
        sys.exit(f"No S3 server: {error.name} is not installed. `make setup` installs it.")
    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app))
    Path("address.tmp").write_text(f"http://127.0.0.1:{server.port}\n")
    Path("address.tmp").rename("address")
    server.serve_forever()
    sys.exit(0)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(0)  # it has nothing to keep


if __name__ == "__main__":
    main()

"""The control API of a running job, over `strobe.hosts.shared.loopback`.

What can be asked is `api.OPERATIONS`; docs/reference/control-api.md describes it.
"""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import Any

from strobe.hosts.shared.loopback import Answer, LoopbackServer, error_answer, request
from strobe.hosts.spark.api import Action, BadRequest
from strobe.hosts.spark.home import read_runtime
from strobe.model.errors import Failed, Misuse, StrobeError
from strobe.store.layout import JobLayout

__all__ = ["call_job", "control_server"]

_log = logging.getLogger("strobe.control")


def control_server(token_file: Path, actions: dict[tuple[str, str], Action]) -> LoopbackServer:
    def perform(method: str, path: str, body: dict[str, Any], _: socket.socket) -> Answer:
        action = actions.get((method, path))
        if action is None:
            return 404, {"error": f"There is no {method} {path}."}
        try:
            return 200, action(body)
        except StrobeError as error:
            return error_answer(
                error, 400 if isinstance(error, BadRequest) else 409 if isinstance(error, Misuse) else 500
            )

    return LoopbackServer(token_file, perform, what="job", log=_log)


def call_job(
    home: Path, job: str, method: str, path: str, body: dict[str, Any] | None = None, *, timeout: float | None = 10.0
) -> dict[str, Any]:
    """Ask a running job something, from another process."""
    runtime = read_runtime(home, job)
    if runtime is None:
        raise Misuse(f"There is no job {job!r} in {home}.", next="`strobe list` shows the jobs; --home says where.")
    if not isinstance(runtime.get("port"), int):
        raise Failed(
            f"Job {job!r} is {runtime.get('state', 'not running')}: it takes no orders now.",
            untouched="Nothing was changed.",
            next=f"Ask again when it runs: `strobe status {job}`.",
        )
    return request(
        runtime["port"], home / JobLayout(job).token, method, path, body, timeout=timeout, who=f"job {job!r}",
        gone=f"If its process {runtime.get('pid', '?')} is gone, `strobe run` resumes it.",
    )  # fmt: skip

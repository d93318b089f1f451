"""The control API of a running job, over `strobe.hosts.shared.loopback`.

What can be asked is `api.OPERATIONS`; docs/reference/control-api.md describes it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from strobe.hosts.shared.loopback import Answer, LoopbackServer, error_answer, request
from strobe.hosts.spark.home.silence import silence
from strobe.hosts.spark.job.api import Action, BadRequest, answer_kind
from strobe.model.errors import Failed, Misuse, StrobeError
from strobe.store.layout import JobLayout
from strobe.store.runtime import read_runtime

__all__ = ["call_job", "control_server"]

_log = logging.getLogger("strobe.control")
_LOOK: Final = 0.5  # seconds between two looks at the driver's heartbeat, while its answer is waited for
_LOOKS_BEFORE_WORD: Final = 6


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
    home: Path,
    job: str,
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
    *,
    timeout: float | None = 10.0,
    waiting: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Ask a running job something, from another process. A driver that gives no sign of life is not waited for.
    `waiting` is called once, if the answer takes a while."""
    runtime = read_runtime(home, job)
    if runtime is None:
        raise Misuse(f"There is no job {job!r} in {home}.", next="`strobe list` shows the jobs; --home says where.")
    port = runtime.port
    if port is None:
        raise Failed(
            f"Job {job!r} is {runtime.state}: it takes no orders now.",
            untouched="Nothing was changed.",
            next=f"Ask again when it runs: `strobe status {job}`.",
        )
    quiet = silence(home, job)
    if quiet is not None:
        raise quiet.error(asked=False)

    def ask() -> dict[str, Any]:
        return request(
            port, home / JobLayout(job).token, method, path, body, timeout=timeout, who=f"job {job!r}",
            kind=answer_kind(method, path),
            gone=f"If its process {runtime.pid or '?'} is gone, `strobe run` resumes it.",
        )  # fmt: skip

    return _watched(ask, home, job, waiting)


def _watched(ask: Callable[[], dict[str, Any]], home: Path, job: str, waiting: Callable[[], None]) -> dict[str, Any]:
    """The answer, unless the driver falls silent before it comes."""
    answer: Future[dict[str, Any]] = Future()

    def work() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=work, name="asking", daemon=True).start()
    for look in itertools.count(1):
        with contextlib.suppress(TimeoutError):
            return answer.result(_LOOK)
        quiet = silence(home, job)
        if quiet is not None:
            raise quiet.error(asked=True)
        if look == _LOOKS_BEFORE_WORD:
            waiting()
    raise AssertionError

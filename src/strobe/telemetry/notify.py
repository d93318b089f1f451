"""Tells people what went wrong: to a webhook, or to a command.

Everything here happens in a thread of its own. A receiver that is slow or away costs the job nothing: messages wait in
a queue, are tried again with growing pauses, and are given up in the end, which is logged.

*Webhook*: a POST of the event as JSON. With a secret it is signed as many services do it: `X-Strobe-Signature` is
`sha256=` and the HMAC of `X-Strobe-Timestamp`, a dot, and the body. `X-Strobe-Delivery` is the same for every attempt,
so that a receiver can tell a repetition.

*Command*: it is run without a shell, with the event on its standard input, and its type and job in the environment.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import queue
import shlex
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from strobe import __version__
from strobe.model.backoff import backoff
from strobe.model.errors import Misuse
from strobe.model.redaction import redact
from strobe.store.times import utc_text

__all__ = ["Notice", "Notifier", "Target", "read_secret", "signature", "target"]

_log = logging.getLogger("strobe.notify")
_ATTEMPTS: Final = 6
_FIRST_PAUSE: Final = 1.0  # seconds; each is twice the one before
_TIMEOUT: Final = 10.0  # seconds for an answer
_COMMAND_TIMEOUT: Final = 60.0
_MOST: Final = 1000  # messages that wait
_GOODBYE: Final = 10.0  # seconds for the last ones


@dataclass(frozen=True, slots=True)
class Notice:
    """`type` is what has happened, in words with a dot: `job.failed`, `checkpoint.failed`. More may be added."""

    type: str
    job: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)
    at: str = field(default_factory=lambda: utc_text(time.time()))
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    host: str = field(default_factory=socket.gethostname)

    def to_json(self) -> bytes:
        return redact(json.dumps(asdict(self))).encode()


class NotDelivered(Exception):
    """`again`: it may work later."""

    def __init__(self, why: str, *, again: bool) -> None:
        super().__init__(why)
        self.again = again


class Target(Protocol):
    def deliver(self, notice: Notice) -> None:
        """Deliver it, or raise NotDelivered."""

    def describe(self) -> str: ...


def target(text: str, secret: bytes | None) -> Target:
    """What `--notify` was given: a URL, or a command. Misuse if it can be neither."""
    if text.startswith(("http://", "https://")):
        if not urllib.parse.urlsplit(text).hostname:
            raise _misuse(f"--notify {redact(text)!r} names no host.")
        return Webhook(text, secret)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise _misuse(f"--notify {text!r} cannot be read: {error}.") from None
    if not words or shutil.which(words[0]) is None:
        raise _misuse(f"--notify {text!r} is neither a URL nor a command that can be run.")
    return Command(tuple(words))


def _misuse(what: str) -> Misuse:
    return Misuse(
        what, untouched="Nothing was started.", next="Write --notify https://HOST/PATH, or --notify 'COMMAND WORDS'."
    )


def read_secret(environment: Mapping[str, str]) -> bytes | None:
    """The secret in STROBE_NOTIFY_SECRET, or in the file that STROBE_NOTIFY_SECRET_FILE names."""
    given, file = environment.get("STROBE_NOTIFY_SECRET"), environment.get("STROBE_NOTIFY_SECRET_FILE")
    try:
        secret = given.encode() if given else Path(file).read_bytes().strip() if file else None
    except OSError as error:
        raise Misuse(
            f"The secret of --notify cannot be read from {file}: {error.strerror}.", untouched="Nothing was started."
        ) from None
    if secret is not None and not secret:
        raise Misuse(f"The file {file}, the secret of --notify, is empty.", untouched="Nothing was started.")
    return secret


def signature(secret: bytes, timestamp: str, body: bytes) -> str:
    return "sha256=" + hmac.new(secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """What is signed for one receiver is not handed on to another."""

    def redirect_request(self, *args: Any, **named: Any) -> None:
        return None


class Webhook:
    def __init__(self, url: str, secret: bytes | None) -> None:
        self._url = url
        self._secret = secret

    def describe(self) -> str:
        return redact(self._url)

    def deliver(self, notice: Notice) -> None:
        body, timestamp = notice.to_json(), str(int(time.time()))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"strobe/{__version__}",
            "X-Strobe-Event": notice.type,
            "X-Strobe-Delivery": notice.id,
            "X-Strobe-Timestamp": timestamp,
        }
        if self._secret is not None:
            headers["X-Strobe-Signature"] = signature(self._secret, timestamp, body)
        post = urllib.request.Request(self._url, data=body, headers=headers, method="POST")  # noqa: S310 (checked)
        try:
            with urllib.request.build_opener(_NoRedirects).open(post, timeout=_TIMEOUT):
                return
        except urllib.error.HTTPError as error:
            again = error.code >= 500 or error.code in (408, 425, 429)
            raise NotDelivered(f"it answered {error.code} {error.reason}", again=again) from None
        except (OSError, ValueError) as error:
            raise NotDelivered(str(error), again=True) from None


class Command:
    def __init__(self, words: tuple[str, ...]) -> None:
        self._words = words

    def describe(self) -> str:
        return redact(shlex.join(self._words))

    def deliver(self, notice: Notice) -> None:
        known = {**os.environ, "STROBE_EVENT": notice.type, "STROBE_JOB": notice.job}
        try:
            done = subprocess.run(
                self._words, input=notice.to_json(), env=known, timeout=_COMMAND_TIMEOUT, check=False,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotDelivered(str(error), again=False) from None
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()[-200:]
            raise NotDelivered(f"it ended with code {done.returncode}{said and f': {said}'}", again=True)


class Notifier:
    """One thread for each target, so that none waits for another."""

    def __init__(self, targets: Sequence[Target], *, first_pause: float = _FIRST_PAUSE) -> None:
        self._posts = [_Post(target, first_pause) for target in targets]

    def tell(self, notice: Notice) -> None:
        for post in self._posts:
            post.put(notice)

    def stop(self, patience: float = _GOODBYE) -> None:
        """Give the last messages a moment; what is not delivered by then is logged."""
        deadline = time.monotonic() + patience
        for post in self._posts:
            post.close()
        for post in self._posts:
            post.join(max(0.0, deadline - time.monotonic()))


class _Post:
    def __init__(self, target: Target, first_pause: float) -> None:
        self._target = target
        self._first_pause = first_pause
        self._queue: queue.Queue[Notice | None] = queue.Queue(_MOST)
        self._hurry = threading.Event()  # the job is over: there is no time for long pauses
        self._thread = threading.Thread(target=self._run, name="notify", daemon=True)
        self._thread.start()

    def put(self, notice: Notice) -> None:
        try:
            self._queue.put_nowait(notice)
        except queue.Full:
            _log.warning("%s is not told of %s: too many messages wait for it", self._target.describe(), notice.type)

    def close(self) -> None:
        self._hurry.set()
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            self._queue.get_nowait()
            self._queue.put_nowait(None)

    def join(self, patience: float) -> None:
        self._thread.join(patience)
        if self._thread.is_alive():
            _log.warning("%s was not told of everything before the end", self._target.describe())

    def _run(self) -> None:
        while (notice := self._queue.get()) is not None:
            self._deliver(notice)

    def _deliver(self, notice: Notice) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._target.deliver(notice)
                return
            except NotDelivered as error:
                if not error.again or attempt == _ATTEMPTS:
                    _log.warning("%s could not be told of %s: %s", self._target.describe(), notice.type, error)
                    return
                _log.info("%s could not be told of %s: %s; once more", self._target.describe(), notice.type, error)
            except Exception:
                _log.warning("%s could not be told of %s", self._target.describe(), notice.type, exc_info=True)
                return
            if self._hurry.is_set():
                time.sleep(self._first_pause)
            else:
                self._hurry.wait(backoff(attempt, self._first_pause))

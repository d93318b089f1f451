"""Objects in a bucket of an S3-compatible store.

Theory
------
The store gives what `base` promises almost by itself: a put is whole or not at all, is durable when it returns, and
with `If-None-Match: *` succeeds only if the key is free. Nothing is renamed. What is left to do here:

- *A put that was repeated.* The client repeats a request whose answer was lost; then our own first attempt makes the
  second one be refused. So every put carries a mark of its own, and one that was refused looks whose mark is there.
- *Content that changes while it is sent.* A large file is read twice, once for its name and once to be sent. The last
  chunk is held back until the hash of what was sent is known: if it is another one, the upload is given up.
- *A put that comes late.* A put that was given up after its time limit may still be on its way, and would find its key
  free. `withdraw` occupies the key with a small object, for which the late put is refused. To readers it is no object.
  They tell it by its size, which a listing shows: nothing of Strobe with such a name is as short.
- *A store that ignores conditions.* Some do, silently. `check` finds out before a job relies on it.

Every request has a time limit, and repeating it has one too: a store that hangs fails what was asked, nothing else.
Messages name bucket, key and endpoint, and what the store said; never a header, so never a credential.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, BinaryIO, Final, cast

from strobe.model.errors import Failed, Misuse
from strobe.store.base import CHUNK, Absent, AlreadyThere, Data, check_key
from strobe.store.layout import MANIFEST
from strobe.store.s3_batch import PART, S3Batch, read_data
from strobe.store.scheme import SCHEME

__all__ = ["CHECKS", "S3Store"]

CHECKS: Final = "strobe-check/"  # below it, for a moment, what tells whether the store can be used
_THREADS: Final = 8  # that send
_ASKING: Final = 16  # that ask for sizes
_MARK: Final = "strobe-put"
_WITHDRAWN: Final = b"given up\n"
_URL = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/+(.*?))?/*")
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9]+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,200})</Message>")
_CAUSE = re.compile(r'message: "([^"]{1,120})"')
_CREDENTIALS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "AuthFailure"})


class S3Store:
    """`s3://bucket/prefix`. Credentials, region and endpoint come from the environment, as for other tools:
    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL. Times are
    seconds: `timeout` of one request, `patience` of a request with all its repetitions."""

    def __init__(self, url: str, *, timeout: float = 30.0, patience: float = 60.0) -> None:
        match = _URL.fullmatch(url)
        if match is None:
            raise Misuse(f"{url!r} is not the address of a bucket.", next="Write it as s3://bucket/prefix.")
        self.bucket, prefix = match[1], match[2] or ""
        if prefix:
            check_key(prefix)
        self.url = f"{SCHEME}{self.bucket}/{prefix}".rstrip("/")
        self._compared: set[str] = set()  # content that this process has written or compared: keys
        self._client, self._errors = _client()
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        self._endpoint = re.sub(r"//[^/@]*@", "//", endpoint) or "Amazon S3"
        options: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
        if not (os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")):
            options["region"] = "us-east-1"
        try:
            self._store = self._client.store.S3Store(
                self.bucket,
                prefix=prefix or None,
                client_options={
                    "timeout": timedelta(seconds=timeout),
                    "connect_timeout": timedelta(seconds=min(timeout, 5.0)),
                    "allow_http": endpoint.startswith("http://"),
                },
                retry_config={
                    "max_retries": 5,
                    "retry_timeout": timedelta(seconds=patience),
                    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 2},
                },
                **options,
            )
        except self._errors.BaseError as error:
            raise Misuse(
                f"The store {self.url} cannot be used: {_first_line(error)}.", next="Check the AWS_… variables."
            ) from None

    def check(self, *, writable: bool = False) -> None:
        """Raises if the bucket cannot be reached; with `writable`, also if it would let two writers win one key."""
        with self._explained(""):
            next(iter(self._client.list(self._store, prefix=CHECKS.rstrip("/"), chunk_size=1)), None)
        if not writable:
            return
        key = f"{CHECKS}{os.urandom(8).hex()}"
        self.put(key, b"", if_absent=True)
        try:
            self.put(key, b"", if_absent=True)
        except AlreadyThere:
            return
        finally:
            self.delete(key)
        raise Misuse(
            f"The store {self.url} at {self._endpoint} ignores conditions: it let the same key be created twice.",
            untouched="Nothing was changed.",
            next="Use a store that honours If-None-Match on PUT: without it two drivers could complete one snapshot.",
        )

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        check_key(key)
        content = read_data(data)
        mark = os.urandom(16).hex()
        with self._explained(key):
            try:
                self._client.put(
                    self._store, key, content, use_multipart=not if_absent and len(content) > PART,
                    chunk_size=PART, attributes={_MARK: mark}, mode="create" if if_absent else "overwrite",
                )  # fmt: skip
            except self._errors.AlreadyExistsError:
                found = self._client.get(self._store, key)
                if _is_withdrawn(key, int(found.meta["size"])):
                    raise Failed(
                        f"{self.describe(key)} was given up before, and a put of it may still be on its way.",
                        untouched="Nothing was changed.",
                        next="Use another place.",
                    ) from None
                if found.attributes.get(_MARK) != mark:
                    raise AlreadyThere(
                        f"{self.describe(key)} is there already.", untouched="It was left as it is."
                    ) from None

    @contextlib.contextmanager
    def batch(self) -> Iterator[S3Batch]:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="strobe-s3") as pool:
            batch = S3Batch(self, pool)
            try:
                yield batch
                batch.finish()
            finally:
                batch.cancel()

    def delete(self, key: str) -> None:
        self.discard([key])

    def withdraw(self, key: str) -> None:
        self.put(key, _WITHDRAWN)

    def occupy(self, key: str) -> None:
        """As `withdraw`, if there is nothing yet: what is there stays."""
        if not self.is_withdrawn(key):
            with contextlib.suppress(AlreadyThere):
                self.put(key, _WITHDRAWN, if_absent=True)

    def discard(self, keys: Iterable[str]) -> None:
        doomed = [check_key(key) for key in keys]
        self._compared.difference_update(doomed)
        if doomed:
            with self._explained(doomed[0]), contextlib.suppress(Absent):
                self._client.delete(self._store, doomed)

    def copy(self, key: str, to: str) -> None:
        """The same bytes under another key; the store does it by itself. `Absent` if there are none."""
        with self._explained(check_key(key)):
            self._client.copy(self._store, key, check_key(to), overwrite=True)

    def confirm(self, keys: Iterable[str]) -> None:
        """What can be seen in a bucket is there for good."""

    def clean(self) -> int:
        """Nothing unfinished is ever visible; parts of uploads that broke off are for the bucket's lifecycle rule."""
        return 0

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, key: str) -> bytes:
        with self.open_read(key) as file:
            try:
                return file.read()
            except OSError as error:
                raise Failed(f"{error.strerror}.", untouched="Nothing was changed.") from error

    def open_read(self, key: str) -> BinaryIO:
        with self._explained(check_key(key)):
            found = self._client.get(self._store, key)
            size = int(found.meta["size"])
            if _is_withdrawn(key, size):
                raise Absent(f"There is no {self.describe(key)}.", untouched="Nothing was changed.")
            first = bytes(found.bytes()) if size <= PART else b""
        if size <= PART:
            return io.BytesIO(first)
        return cast(BinaryIO, io.BufferedReader(_Parts(self, key, size), CHUNK))

    def read_range(self, key: str, start: int, length: int) -> bytes:
        with self._explained(key):
            return bytes(self._client.get_range(self._store, key, start=start, length=length))

    def size(self, key: str) -> int | None:
        try:
            with self._explained(check_key(key)):
                size = int(self._client.head(self._store, key)["size"])
        except Absent:
            return None
        return None if _is_withdrawn(key, size) else size

    def is_withdrawn(self, key: str) -> bool:
        """Whether nothing can be put there any more."""
        try:
            with self._explained(check_key(key)):
                return _is_withdrawn(key, int(self._client.head(self._store, key)["size"]))
        except Absent:
            return False

    def sizes(self, keys: Iterable[str]) -> dict[str, int]:
        asked = list(dict.fromkeys(keys))
        if len(asked) < 2:
            found = [self.size(key) for key in asked]
        else:
            with ThreadPoolExecutor(min(_ASKING, len(asked)), thread_name_prefix="strobe-s3") as pool:
                found = list(pool.map(self.size, asked))
        return {key: size for key, size in zip(asked, found, strict=True) if size is not None}

    def list(self, prefix: str) -> Iterator[str]:
        directory = prefix.rpartition("/")[0]  # the client knows prefixes of whole parts only
        with self._explained(prefix):
            pages = self._client.list(self._store, prefix=directory or None)
            found = [m["path"] for page in pages for m in page if not _is_withdrawn(m["path"], int(m["size"]))]
        return iter(sorted(key for key in found if key.startswith(prefix)))

    def folders(self, prefix: str) -> tuple[str, ...]:
        """The names right below a prefix that have something below them; what that is is not listed."""
        with self._explained(prefix):
            found = self._client.list_with_delimiter(self._store, prefix=prefix.rstrip("/") or None)
        return tuple(sorted(each.rstrip("/").rpartition("/")[2] for each in found["common_prefixes"]))

    def describe(self, key: str = "") -> str:
        return f"{self.url}/{key}" if key else self.url

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        """Says in Strobe's words what the store refused, or why it could not be asked."""
        try:
            yield
        except (self._errors.BaseError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # a file of ours
                raise
            raise self._explain(error, key) from None

    def _explain(self, error: Exception, key: str) -> Failed | Misuse:
        text = str(error)
        status, code = _found(_STATUS, text), _found(_CODE, text)
        said = " ".join(part for part in (status, code) if part)
        message = _found(_MESSAGE, text)
        said = f"{said}: {message.rstrip('.')}" if message else said
        where = self.describe(key)
        if code == "NoSuchBucket":
            return Misuse(
                f"There is no bucket {self.bucket!r} at {self._endpoint}.",
                untouched="Nothing was changed.",
                next="Make the bucket, or fix the address or AWS_ENDPOINT_URL.",
            )
        if isinstance(error, FileNotFoundError):
            return Absent(f"There is no {where}.", untouched="Nothing was changed.")
        if code in _CREDENTIALS or status == "401":
            return Failed(
                f"{self._endpoint} does not accept the credentials for {where} ({said}).",
                untouched="Nothing was changed.",
                next="Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN.",
            )
        if status == "403":
            return Failed(
                f"{self._endpoint} refuses {where} ({said}).",
                untouched="Nothing was changed.",
                next="Let these credentials get, put, list and delete below the prefix.",
            )
        if status:
            return Failed(
                f"{self._endpoint} failed at {where} ({said}).",
                untouched="What was stored before is untouched.",
                next="Try again when the store is well.",
            )
        return Failed(
            f"{self._endpoint} did not answer for {where}: {_found(_CAUSE, text) or _cause(text)}.",
            untouched="What was stored before is untouched.",
            next="Check that the endpoint (AWS_ENDPOINT_URL) is right and can be reached from here.",
        )


class _Parts(io.RawIOBase):
    """A large object, a part at a time: each request is short, whatever the size of the whole."""

    def __init__(self, store: S3Store, key: str, size: int) -> None:
        self._store, self._key, self._size = store, key, size
        self._at = 0
        self._part = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._part and self._at < self._size:
            try:
                part = self._store.read_range(self._key, self._at, min(PART, self._size - self._at))
            except Failed as error:
                raise OSError(errno.EIO, error.what.rstrip(".")) from error
            self._part = memoryview(part)
            self._at += len(part)
        count = min(len(buffer), len(self._part))
        buffer[:count] = self._part[:count]
        self._part = self._part[count:]
        return count


def _is_withdrawn(key: str, size: int) -> bool:
    return size == len(_WITHDRAWN) and key.rpartition("/")[2] == MANIFEST


def _client() -> tuple[Any, Any]:
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError:
        raise Misuse(
            "A store on S3 needs the package obstore, which is not installed.",
            untouched="Nothing was changed.",
            next="Install it: pip install 'strobe[s3]'.",
        ) from None
    return obstore, obstore.exceptions


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0].rstrip(". ")


def _cause(text: str) -> str:
    if "TimedOut" in text or "timed out" in text or "Timeout" in text:
        return "it took too long"
    if "credential" in text.lower():
        return "no credentials were found"
    return "the connection broke"

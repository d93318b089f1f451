"""A bucket, in the place of `obstore`: it outlives everything, honours conditions, is slow, and fails.

Each request is a point before it is carried out. A request that fails was not carried out; a put that is *late* fails
for whoever sent it, and is carried out some steps later, if its condition holds then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tests.hostsim.scheduler import Scheduler

__all__ = ["Bucket"]


class _Failure(Exception):
    """The root of the client's errors."""


class _AlreadyExists(_Failure):
    pass


@dataclass(frozen=True)
class _Object:
    data: bytes
    attributes: Mapping[str, str]

    @property
    def meta(self) -> dict[str, Any]:
        return {"size": len(self.data)}

    def bytes(self) -> bytes:
        return self.data


@dataclass
class Bucket:
    scheduler: Scheduler
    objects: dict[str, _Object] = field(default_factory=dict)
    refusals: int = 0  # how many of the next requests fail
    lateness: int = 0  # by how many steps the next put is late
    refused: int = 0
    on_put: Callable[[str, str, bytes, str], None] = lambda store, key, data, by: None  # by which process
    _late: list[tuple[int, Callable[[], None]]] = field(default_factory=list)

    def client(self) -> tuple[Any, Any]:
        """What `strobe.store.s3` imports."""
        calls = SimpleNamespace(
            store=SimpleNamespace(S3Store=lambda bucket, prefix=None, **_: prefix or ""),
            put=self._put, get=self._get, head=self._head, list=self._list, delete=self._delete, copy=self._copy,
            get_range=self._get_range,
        )  # fmt: skip
        return calls, SimpleNamespace(BaseError=_Failure, AlreadyExistsError=_AlreadyExists)

    def at_step(self, step: int) -> None:
        if not self._late:
            return
        for late in [put for put in self._late if put[0] <= step]:
            self._late.remove(late)
            late[1]()

    def _request(self, what: str) -> None:
        self.scheduler.point(f"bucket: {what}")
        current = self.scheduler.current
        if self.refusals > 0 and current is not None and current.process.name != "world":
            self.refusals -= 1
            self.refused += 1
            raise _Failure("status code: 503 <Code>SlowDown</Code>")

    def _put(
        self,
        store: str,
        key: str,
        content: bytes | Iterable[bytes],
        *,
        attributes: Any = None,
        mode: str = "",
        **_: Any,
    ) -> None:
        data = content if isinstance(content, bytes) else b"".join(content)
        self._request(f"put {key}")
        author = self.scheduler.current.process.name if self.scheduler.current is not None else ""

        def carry_out() -> None:
            if mode == "create" and f"{store}/{key}" in self.objects:
                raise _AlreadyExists(key)
            self.objects[f"{store}/{key}"] = _Object(data, attributes or {})
            self.on_put(store, key, data, author)

        current = self.scheduler.current
        if self.lateness and current is not None and current.process.name != "world":
            self._late.append((self.scheduler.steps + self.lateness, lambda: _unless_taken(carry_out)))
            self.lateness = 0
            self.refused += 1
            raise _Failure("operation timed out")
        carry_out()

    def _found(self, store: str, key: str) -> _Object:
        found = self.objects.get(f"{store}/{key}")
        if found is None:
            raise FileNotFoundError(f"there is no {key}")
        return found

    def _get(self, store: str, key: str) -> _Object:
        self._request(f"get {key}")
        return self._found(store, key)

    def _get_range(self, store: str, key: str, *, start: int, length: int) -> bytes:
        return self._get(store, key).data[start : start + length]

    def _head(self, store: str, key: str) -> dict[str, Any]:
        self._request(f"head {key}")
        return {**self._found(store, key).meta, "e_tag": None}

    def _list(self, store: str, *, prefix: str | None = None, **_: Any) -> list[list[dict[str, Any]]]:
        self._request(f"list {prefix}")
        above = f"{store}/{prefix}/" if prefix else f"{store}/"
        found = [k for k in sorted(self.objects) if k.startswith(above)]
        return [[{"path": k.removeprefix(f"{store}/"), "size": len(self.objects[k].data)} for k in found]]

    def _delete(self, store: str, keys: list[str]) -> None:
        for key in keys:
            self._request(f"delete {key}")
            self.objects.pop(f"{store}/{key}", None)

    def _copy(self, store: str, key: str, to: str, **_: Any) -> None:
        self._request(f"copy {key}")
        self.objects[f"{store}/{to}"] = self._found(store, key)


def _unless_taken(carry_out: Callable[[], None]) -> None:
    with contextlib.suppress(_AlreadyExists):
        carry_out()

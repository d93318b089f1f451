"""What a running job can be asked over HTTP: one registry, from which requests are checked, answered and described.

`control.py` carries requests and answers; this module alone knows what they mean. The OpenAPI document is made from the
registry and from the records that the answers are, so it cannot say anything else than the code does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Meta, Struct

from strobe import __version__
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.home.listing import JobSummary, list_jobs
from strobe.hosts.spark.snapshot.coordinator import Progress
from strobe.hosts.spark.snapshot.metrics import JobStatus, progress_json, status_json
from strobe.hosts.spark.snapshot.savepoints import Savepoint
from strobe.model.errors import Misuse
from strobe.model.ids import SnapshotId
from strobe.store.releases import Release
from strobe.store.scheme import is_s3

__all__ = ["OPERATIONS", "Action", "Answer", "BadRequest", "Operation", "actions", "answer_kind", "openapi"]

Answer = Any  # JSON
Action = Callable[[dict[str, Any]], Answer]
_REF: Final = "#/components/schemas/{name}"


class BadRequest(Misuse):
    """The body of a request is not what the operation takes."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What has become of the job."""

    job: str
    state: str


class Request(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request: an object. None of its members must be there, and null is as if it were not."""


_Directory: TypeAlias = Annotated[
    str | None,
    Meta(
        description="an absolute path that does not exist yet, or is empty, or s3://bucket/prefix with nothing below "
        "it; by default a directory below the job's home"
    ),
]


class SavepointRequest(Request, frozen=True):
    directory: _Directory = None


class StopRequest(Request, frozen=True):
    directory: _Directory = None
    drain: Annotated[
        bool | None,
        Meta(description="let the sources end and everything run through first, to the end of event time"),
    ] = None


class CancelRequest(Request, frozen=True):
    retention: Annotated[
        Literal["retain", "delete"] | None,
        Meta(description="what becomes of its checkpoints; by default as its pipeline says"),
    ] = None


class ReleaseRequest(Request, frozen=True):
    snapshot: Annotated[int | None, Meta(description="the newest snapshot whose rows become visible")] = None
    by: Annotated[str | None, Meta(description="who says so, for the record")] = None


@dataclass(frozen=True, slots=True)
class Operation:
    """`answer` is the record that comes back; `many`: a list of them. `waits`: the answer comes when it is done."""

    name: str
    method: str
    path: str
    summary: str
    answer: type | None
    takes: type[Request] = Request
    many: bool = False
    waits: bool = False


OPERATIONS: Final = (
    Operation("list", "GET", "/v1/jobs", "the jobs of this job's home directory", JobSummary, many=True),
    Operation("status", "GET", "/v1/status", "the job, its stages, its recent snapshots", JobStatus),
    Operation("checkpoint", "POST", "/v1/checkpoint", "take a checkpoint now", Progress, waits=True),
    Operation(
        "savepoint", "POST", "/v1/savepoint", "copy everything that the job is to a directory, while it runs on",
        Savepoint, SavepointRequest, waits=True,
    ),
    Operation(
        "stop", "POST", "/v1/stop", "take a savepoint after which no stage does anything more, then end the job",
        Savepoint, StopRequest, waits=True,
    ),
    Operation(
        "cancel", "POST", "/v1/cancel", "end the job, whatever is under way", Ended, CancelRequest, waits=True
    ),
    Operation(
        "release", "POST", "/v1/release", "release what invariants hold back, up to a snapshot", Release, ReleaseRequest
    ),
    Operation("openapi", "GET", "/v1/openapi.json", "this description, as an OpenAPI document", None),
)  # fmt: skip


def answer_kind(method: str, path: str) -> Any:
    """The type that an answer must fit; any object, if there is no such operation."""
    for operation in OPERATIONS:
        if (operation.method, operation.path) == (method, path) and not operation.many and operation.answer:
            return operation.answer
    return dict[str, Any]


class _Orders(Protocol):
    def savepoint(self, place: str | Path | None) -> Savepoint: ...

    def stop(self, place: str | Path | None, *, drain: bool = False) -> Savepoint: ...

    @property
    def release(self) -> Callable[[SnapshotId, str], Release]: ...


class ControlledJob(Protocol):
    name: str
    home: JobHome

    @property
    def orders(self) -> _Orders: ...

    def status(self) -> JobStatus: ...

    def checkpoint(self) -> SnapshotId: ...

    def cancel(self, retention: str | None = None) -> None: ...


def actions(job: ControlledJob) -> dict[tuple[str, str], Action]:
    """Each operation as a function from a request's body to its answer; `BadRequest` if the body does not fit."""

    def checkpoint() -> Answer:
        snapshot = job.checkpoint()
        return next(progress_json(p) for p in job.status().checkpoints if p.snapshot == snapshot)

    def savepoint(asked: SavepointRequest) -> Answer:
        return asdict(job.orders.savepoint(_place(asked.directory)))

    def stop(asked: StopRequest) -> Answer:
        return asdict(job.orders.stop(_place(asked.directory), drain=bool(asked.drain)))

    def cancel(asked: CancelRequest) -> Answer:
        job.cancel(asked.retention)
        return asdict(Ended(job.name, job.status().state))

    def release(asked: ReleaseRequest) -> Answer:
        if asked.snapshot is None:
            raise BadRequest("release needs a snapshot.", next="Say the newest whose rows may become visible.")
        return asdict(job.orders.release(SnapshotId(asked.snapshot), asked.by or ""))

    does: dict[str, Callable[[Any], Answer]] = {
        "list": lambda _: [asdict(summary) for summary in list_jobs(job.home.home)],
        "status": lambda _: status_json(job.status()),
        "checkpoint": lambda _: checkpoint(),
        "savepoint": savepoint,
        "stop": stop,
        "cancel": cancel,
        "release": release,
        "openapi": lambda _: openapi(),
    }
    return {(o.method, o.path): _checked(o, does[o.name]) for o in OPERATIONS}


def _checked(operation: Operation, act: Callable[[Any], Answer]) -> Action:
    def action(body: dict[str, Any]) -> Answer:
        try:
            asked = msgspec.convert(body, operation.takes)
        except msgspec.ValidationError as error:
            raise BadRequest(
                f"{operation.name} does not take this request: {error}.",
                untouched="Nothing was started.",
                next=f"It takes: {', '.join(_members(operation)) or 'nothing'}.",
            ) from error
        return act(asked)

    return action


def _members(operation: Operation) -> Iterator[str]:
    for name, schema in _body(operation).get("properties", {}).items():
        values = [value for each in schema.get("anyOf", ()) for value in each.get("enum", ())]
        yield f"{name} ({' or '.join(values)})" if values else name


def _place(directory: str | None) -> str | None:
    if directory is not None and not is_s3(directory) and not Path(directory).is_absolute():
        raise BadRequest(
            f"{directory!r} is not an absolute path: the job does not know your working directory.",
            untouched="Nothing was started.",
            next="Begin it with a slash.",
        )
    return directory


# ── the description ─────────────────────────────────────────────────────────────────────────────────────────────────


def openapi() -> dict[str, Any]:
    """The OpenAPI document of this version."""
    answers = {o.answer for o in OPERATIONS if o.answer is not None}
    _, records = msgspec.json.schema_components(sorted(answers, key=lambda a: a.__name__), ref_template=_REF)
    schemas = {
        "Error": {
            "type": "object",
            "properties": {name: {"type": "string"} for name in ("error", "untouched", "next")},
            "required": ["error"],
        },
        **{name: _always_whole(schema) for name, schema in records.items()},
    }
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Strobe: the control API of a running job", "version": __version__},
        "servers": [
            {
                "url": "http://127.0.0.1:{port}",
                "variables": {"port": {"default": "0", "description": "`port` in runtime.json of the job's home"}},
            }
        ],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "the file `token` of the job's home"}
            },
        },
    }


def _describe(operation: Operation) -> dict[str, Any]:
    answer: dict[str, Any] = {"type": "object"}
    if operation.answer is not None:
        answer = {"$ref": _REF.format(name=operation.answer.__name__)}
    if operation.many:
        answer = {"type": "array", "items": answer}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": {
            "200": {
                "description": "done" if operation.waits else "the answer",
                "content": {"application/json": {"schema": answer}},
            },
            "400": {"description": "the request cannot be read", "content": error},
            "401": {"description": "the token is wrong", "content": error},
            "409": {"description": "refused: nothing was started", "content": error},
            "500": {"description": "it was tried and did not work", "content": error},
        },
    }
    if operation.takes is not Request:
        content = {"application/json": {"schema": _body(operation)}}
        described["requestBody"] = {"required": False, "content": content}
    return described


def _body(operation: Operation) -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components((operation.takes,), ref_template=_REF)
    body: dict[str, Any] = schemas[operation.takes.__name__]
    return body


def _always_whole(schema: dict[str, Any]) -> dict[str, Any]:
    """An answer has every member of its record, also those that a record may be made without."""
    if "properties" not in schema:
        return {"type": "string", **schema}  # an enumeration
    members = {name: {k: v for k, v in one.items() if k != "default"} for name, one in schema["properties"].items()}
    return {**schema, "properties": members, "required": list(members)}

"""What a running job can be asked over HTTP: one registry, from which requests are checked, answered and described.

`control.py` carries requests and answers; this module alone knows what they mean. The OpenAPI document is made from the
registry and from the records that the answers are, so it cannot say anything else than the code does.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, Protocol

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

__all__ = ["OPERATIONS", "Action", "Answer", "BadRequest", "Field", "Operation", "actions", "openapi"]

Answer = Any  # JSON
Action = Callable[[dict[str, Any]], Answer]


class BadRequest(Misuse):
    """The body of a request is not what the operation takes."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What has become of the job."""

    job: str
    state: str


@dataclass(frozen=True, slots=True)
class Field:
    """A member of a request's body. None of them must be there."""

    name: str
    type: str
    meaning: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Operation:
    """`answer` is the record that comes back; `many`: a list of them. `waits`: the answer comes when it is done."""

    name: str
    method: str
    path: str
    summary: str
    answer: type | None
    fields: tuple[Field, ...] = ()
    many: bool = False
    waits: bool = False


_DIRECTORY: Final = Field(
    "directory",
    "string",
    "an absolute path that does not exist yet, or is empty, or s3://bucket/prefix with nothing below it; by default a "
    "directory below the job's home",
)
_TYPES: Final[Mapping[str, type]] = {"string": str, "boolean": bool, "integer": int}
OPERATIONS: Final = (
    Operation("list", "GET", "/v1/jobs", "the jobs of this job's home directory", JobSummary, many=True),
    Operation("status", "GET", "/v1/status", "the job, its stages, its recent snapshots", JobStatus),
    Operation("checkpoint", "POST", "/v1/checkpoint", "take a checkpoint now", Progress, waits=True),
    Operation(
        "savepoint", "POST", "/v1/savepoint", "copy everything that the job is to a directory, while it runs on",
        Savepoint, (_DIRECTORY,), waits=True,
    ),
    Operation(
        "stop", "POST", "/v1/stop", "take a savepoint after which no stage does anything more, then end the job",
        Savepoint,
        (_DIRECTORY,
         Field("drain", "boolean", "let the sources end and everything run through first, to the end of event time")),
        waits=True,
    ),
    Operation(
        "cancel", "POST", "/v1/cancel", "end the job, whatever is under way", Ended,
        (Field("retention", "string", "what becomes of its checkpoints; by default as its pipeline says",
               ("retain", "delete")),),
        waits=True,
    ),
    Operation(
        "release", "POST", "/v1/release", "let go what invariants keep back, up to a snapshot", Release,
        (Field("snapshot", "integer", "the newest snapshot whose rows become visible"),
         Field("by", "string", "who says so, for the record")),
    ),
    Operation("openapi", "GET", "/v1/openapi.json", "this description, as an OpenAPI document", None),
)  # fmt: skip


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

    def cancel(retention: str | None = None) -> Answer:
        job.cancel(retention)
        return asdict(Ended(job.name, job.status().state))

    def release(snapshot: int | None = None, by: str = "") -> Answer:
        if snapshot is None:
            raise BadRequest("release needs a snapshot.", next="Say the newest whose rows may become visible.")
        return asdict(job.orders.release(SnapshotId(snapshot), by))

    does: dict[str, Callable[..., Answer]] = {
        "list": lambda: [asdict(summary) for summary in list_jobs(job.home.home)],
        "status": lambda: status_json(job.status()),
        "checkpoint": checkpoint,
        "savepoint": lambda directory=None: asdict(job.orders.savepoint(_place(directory))),
        "stop": lambda directory=None, drain=False: asdict(job.orders.stop(_place(directory), drain=drain)),
        "cancel": cancel,
        "release": release,
        "openapi": openapi,
    }
    return {(o.method, o.path): _checked(o, does[o.name]) for o in OPERATIONS}


def _checked(operation: Operation, act: Callable[..., Answer]) -> Action:
    known = {field.name: field for field in operation.fields}

    def action(body: dict[str, Any]) -> Answer:
        given = {name: value for name, value in body.items() if value is not None}
        for name, value in given.items():
            field = known.get(name)
            if field is None:
                takes = ", ".join(known) or "nothing"
                raise BadRequest(f"{operation.name} takes no {name!r}.", next=f"It takes: {takes}.")
            if type(value) is not _TYPES[field.type]:
                raise BadRequest(f"{operation.name}: {name} must be a {field.type}, not {value!r}.")
            if field.values and value not in field.values:
                raise BadRequest(f"{operation.name}: {name} must be one of {', '.join(field.values)}, not {value!r}.")
        return act(**given)

    return action


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
    schemas: dict[str, Any] = {
        "Error": {
            "type": "object",
            "properties": {name: {"type": "string"} for name in ("error", "untouched", "next")},
            "required": ["error"],
        }
    }
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation, schemas)
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


def _describe(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"type": "object"} if operation.answer is None else _schema(operation.answer, schemas)
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
            "401": {"description": "the token does not fit", "content": error},
            "409": {"description": "refused: nothing was started", "content": error},
            "500": {"description": "it was tried and did not work", "content": error},
        },
    }
    if operation.fields:
        properties = {
            f.name: {"type": f.type, "description": f.meaning, **({"enum": list(f.values)} if f.values else {})}
            for f in operation.fields
        }
        body = {"type": "object", "properties": properties, "additionalProperties": False}
        described["requestBody"] = {"required": False, "content": {"application/json": {"schema": body}}}
    return described


_PLAIN: Final[Mapping[Any, str]] = {str: "string", int: "integer", float: "number", bool: "boolean", Path: "string"}


def _schema(of: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of a value of type `of`; records go to `schemas` by name."""
    of = getattr(of, "__supertype__", of)  # a NewType
    if of in _PLAIN:
        return {"type": _PLAIN[of]}
    if is_dataclass(of) and isinstance(of, type):
        if of.__name__ not in schemas:
            schemas[of.__name__] = {}  # it may hold itself
            hints = typing.get_type_hints(of)
            schemas[of.__name__] = {
                "type": "object",
                "properties": {f.name: _schema(hints[f.name], schemas) for f in fields(of)},
                "required": [f.name for f in fields(of)],
            }
        return {"$ref": f"#/components/schemas/{of.__name__}"}
    if typing.get_origin(of) is tuple:
        return {"type": "array", "items": _schema(typing.get_args(of)[0], schemas)}
    if isinstance(of, types.UnionType):
        return {"anyOf": [_schema(each, schemas) for each in typing.get_args(of)]}
    if of is type(None):
        return {"type": "null"}
    return {"type": "string", "enum": [member.value for member in of]}

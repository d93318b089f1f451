"""The OpenAPI document of `/api/v1`, made from the registry and from the records."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from strobe import __version__
from strobe.web.operations import OPERATIONS, Operation
from strobe.web.views import Refusal

__all__ = ["openapi"]

_STATUSES = {
    "400": "the request cannot be read",
    "401": "the token is missing or wrong",
    "403": "another site asks, or the page is read-only",
    "404": "there is no such job, system or snapshot",
    "409": "refused: nothing was started",
    "500": "it was tried and did not work",
}


def openapi() -> dict[str, Any]:
    types = [Refusal, *(o.answer for o in OPERATIONS), *(o.takes for o in OPERATIONS if o.method == "POST")]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    refusal, rest = schemas[0], list(schemas[1:])
    answers = rest[: len(OPERATIONS)]
    bodies = iter(rest[len(OPERATIONS) :])
    paths: dict[str, Any] = {}
    for operation, answer in zip(OPERATIONS, answers, strict=True):
        body = next(bodies) if operation.method == "POST" else None
        path = "/api/v1" + re.sub(r"{(\w+)(:int)?}", r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _describe(operation, answer, body, refusal)
    paths["/api/v1/events"] = {"get": _events()}
    paths["/api/v1/systems/{job}/diagram.svg"] = {"get": _diagram()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Strobe: all jobs and live systems of a home", "version": __version__},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "the token in the printed address"}
            },
        },
    }


def _describe(operation: Operation, answer: Any, body: Any, refusal: Any) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": _parameters(operation.path, operation.query),
        "responses": {
            "200": {"description": "the answer", "content": {"application/json": {"schema": answer}}},
            **{
                status: {"description": meaning, "content": {"application/json": {"schema": refusal}}}
                for status, meaning in _STATUSES.items()
            },
        },
    }
    if body is not None:
        described["requestBody"] = {"required": False, "content": {"application/json": {"schema": body}}}
    return described


def _parameters(path: str, query: tuple[str, ...]) -> list[dict[str, Any]]:
    found = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "integer" if kind else "string"}}
        for name, kind in re.findall(r"{(\w+)(:int)?}", path)
    ]
    return found + [{"name": name, "in": "query", "schema": {"type": "integer"}} for name in query]


def _events() -> dict[str, Any]:
    return {
        "operationId": "events",
        "summary": "server-sent events: the answer of `jobs`, `job` or `system`, whenever it has changed",
        "parameters": [
            {"name": "watch", "in": "query", "required": True, "schema": {"type": "string"},
             "description": "`jobs`, `job/NAME` or `system/NAME`"},
        ],
        "responses": {"200": {"description": "a stream", "content": {"text/event-stream": {}}}},
    }  # fmt: skip


def _diagram() -> dict[str, Any]:
    return {
        "operationId": "diagram",
        "summary": "the space–time diagram of a system that kept a journal and has ended",
        "parameters": _parameters("/systems/{job}", ("events",)),
        "responses": {"200": {"description": "the diagram", "content": {"image/svg+xml": {}}}},
    }

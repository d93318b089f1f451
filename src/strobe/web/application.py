"""The routes: the page, its files, `/api/v1`, and the stream of events."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from strobe.model.errors import Failed, Misuse, StrobeError
from strobe.model.extras import missing_extra
from strobe.model.redaction import redact
from strobe.web.description import openapi
from strobe.web.events import Events
from strobe.web.operations import OPERATIONS, Desk, NotThere, Operation
from strobe.web.security import Access, Secured
from strobe.web.views import Refusal

__all__ = ["STATIC", "application"]

STATIC: Final = Path(__file__).parent / "static"
_encode: Final = msgspec.json.Encoder().encode
_NO_STORE: Final = {"Cache-Control": "no-store"}
_MOST_EVENTS: Final = 600  # of a diagram


def application(desk: Desk, access: Access) -> Secured:
    events = Events(desk)
    # Orders may take minutes, and many may be waited for: they must not take the readers' threads.
    threads = ThreadPoolExecutor(64, thread_name_prefix="operation")
    document = json.dumps(openapi()).encode()

    async def described(request: Request) -> Response:
        return Response(document, media_type="application/json", headers=_NO_STORE)

    async def watch(request: Request) -> Response:
        what = request.query_params.get("watch", "")
        read = events.reading(what)
        if read is None:
            return _refused(400, Misuse(f"{what!r} cannot be watched.", next="Watch jobs, job/NAME or system/NAME."))
        headers = {**_NO_STORE, "X-Accel-Buffering": "no"}
        return StreamingResponse(events.stream(what, read), media_type="text/event-stream", headers=headers)

    async def diagram(request: Request) -> Response:
        try:
            count = min(int(request.query_params.get("events", "120")), _MOST_EVENTS)
            name = request.path_params["job"]
            draw = functools.partial(desk.systems.diagram, name, count)
            svg = await asyncio.get_running_loop().run_in_executor(threads, draw)
        except ValueError:
            return _refused(400, Misuse("events is a number."))
        except StrobeError as error:
            return _refused(404 if isinstance(error, NotThere) else 409, error)
        return Response(svg, media_type="image/svg+xml", headers=_NO_STORE)

    async def metrics(request: Request) -> Response:
        try:
            from strobe.web.scraping import scrape  # the writer of metrics needs an extra
        except ModuleNotFoundError as error:
            return _refused(404, missing_extra(error) or Failed(str(error)))
        work = functools.partial(scrape, desk.jobs, request.headers.get("accept", ""))
        body, content_type = await asyncio.get_running_loop().run_in_executor(threads, work)
        return Response(body, headers={**_NO_STORE, "Content-Type": content_type})

    async def page(request: Request) -> Response:
        return Response(
            (STATIC / "index.html").read_bytes(), media_type="text/html", headers={"Cache-Control": "no-cache"}
        )

    async def unknown(request: Request) -> Response:
        return _refused(404, Misuse(f"There is no {request.url.path}.", next="/api/v1/openapi.json has what there is."))

    routes = [
        Route("/", page),
        Route("/metrics", metrics),
        *(Route(f"/api/v1{o.path}", _endpoint(o, desk, threads), methods=[o.method]) for o in OPERATIONS),
        Route("/api/v1/openapi.json", described),
        Route("/api/v1/events", watch),
        Route("/api/v1/systems/{job}/diagram.svg", diagram),
        Route("/api/{rest:path}", unknown, methods=["GET", "POST"]),
        Mount("/static", _Files(directory=STATIC)),
    ]
    return Secured(Starlette(routes=routes), access)


class _Files(StaticFiles):
    """Static files. Browsers ask again at each visit, and get them if they have changed: a newer Strobe must not run
    with an older script."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        return response


def _endpoint(
    operation: Operation, desk: Desk, threads: ThreadPoolExecutor
) -> Callable[[Request], Awaitable[Response]]:
    decoder = msgspec.json.Decoder(operation.takes)

    async def endpoint(request: Request) -> Response:
        if operation.method == "POST" and desk.read_only and not operation.reads:
            next = "Use the strobe command" + ("." if desk.place.in_bucket else ", or start it without --read-only.")
            return _refused(403, Misuse("This page is read-only.", untouched="Nothing was changed.", next=next))
        try:
            numbers = {
                name: int(request.query_params[name]) for name in operation.query if name in request.query_params
            }
            body = decoder.decode(await request.body() or b"{}") if operation.method == "POST" else None
        except (ValueError, msgspec.DecodeError) as error:
            why = (
                str(error)
                if isinstance(error, msgspec.DecodeError)
                else f"one of {', '.join(operation.query)} is not a number"
            )
            return _refused(400, Misuse(f"The request cannot be read: {why}.", untouched="Nothing was changed."))
        act = functools.partial(operation.act, desk, request.path_params, numbers, body)
        try:
            answer = await asyncio.get_running_loop().run_in_executor(threads, act)
        except NotThere as error:
            return _refused(404, error)
        except StrobeError as error:
            return _refused(409 if isinstance(error, Misuse) else 500, error)
        except Exception as error:
            return _refused(500, Failed(redact(f"It did not work: {type(error).__name__}: {error}.")))
        return Response(_encode(answer), media_type="application/json", headers=_NO_STORE)

    return endpoint


def _refused(status: int, error: StrobeError) -> Response:
    refusal = Refusal(error.what, error.untouched, error.next)
    return Response(_encode(refusal), status, media_type="application/json", headers=_NO_STORE)

"""The control API of a running job: what can be asked, who may ask, and what becomes of two orders at once."""

from __future__ import annotations

import http.client
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import strobe
from strobe.hosts.spark.job.api import OPERATIONS, Operation, openapi
from strobe.hosts.spark.job.control import call_job
from strobe.model.errors import Failed, Misuse
from tests.hosts.spark.snapshot.test_savepoint import World, in_background, sound, under_way, world
from tests.support.documents import ROOT
from tests.support.spark.jobs import eventually

pytestmark = pytest.mark.spark
__all__ = ["world"]


def ask(job: strobe.Job, method: str, path: str, body: str | None = None, token: str | None = None) -> tuple[int, Any]:
    """A request as any program would make it."""
    assert job._control is not None
    port = job._control.port
    token = token if token is not None else job.home.path(job.home.layout.token).read_text()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request(method, path, body, {"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    value = json.loads(answer.read())
    connection.close()
    return answer.status, value


def fits(value: Any, schema: dict[str, Any], document: dict[str, Any]) -> bool:
    """Whether a value is what the OpenAPI document says: as much of JSON Schema as the document uses."""
    if "$ref" in schema:
        return fits(value, document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], document)
    if "anyOf" in schema:
        return any(fits(value, each, document) for each in schema["anyOf"])
    if schema["type"] == "array":
        return isinstance(value, list) and all(fits(each, schema["items"], document) for each in value)
    if schema["type"] == "object":
        inside = schema.get("properties", {})
        return (
            isinstance(value, dict)
            and set(schema.get("required", ())) <= set(value)
            and (not inside or set(value) <= set(inside))
            and all(fits(each, inside[name], document) for name, each in value.items() if name in inside)
        )
    kinds: dict[str, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None)}
    return isinstance(value, kinds[schema["type"]]) and value in schema.get("enum", [value])


def test_every_operation_answers_what_its_description_says(world: World, tmp_path: Path) -> None:
    job = world.job
    status, document = ask(job, "GET", "/v1/openapi.json")
    assert (status, document) == (200, openapi())
    token = job.home.path(job.home.layout.token)
    assert token.stat().st_mode & 0o777 == 0o600
    assert token.read_text() not in json.dumps(document)
    bodies = {
        "savepoint": {"directory": str(tmp_path / "one")},
        "stop": {"directory": str(tmp_path / "two"), "drain": False},
    }
    others = ("cancel", "release")  # below, and where something is held (test_holding_jobs)
    for operation in sorted((o for o in OPERATIONS if o.name not in others), key=lambda o: o.name == "stop"):
        body = bodies.get(operation.name)
        status, answer = ask(job, operation.method, operation.path, json.dumps(body) if body else None)
        assert status == 200, (operation.name, answer)
        described = document["paths"][operation.path][operation.method.lower()]
        schema = described["responses"]["200"]["content"]["application/json"]["schema"]
        assert fits(answer, schema, document), (operation.name, answer)
    assert job.wait(60)
    assert job.state is strobe.JobState.STOPPED
    sound(tmp_path / "one")
    sound(tmp_path / "two")
    again = world.again()
    status, answer = ask(again, "POST", "/v1/cancel", '{"retention": "delete"}')
    assert (status, answer) == (200, {"job": "saved", "state": "canceled"})
    assert again.store.list() == ()


def test_requests_that_are_wrong_are_refused_and_change_nothing(world: World, tmp_path: Path) -> None:
    job = world.job
    for token in ("", "wrong", "ünlike"):
        status, said = ask(job, "POST", "/v1/cancel", token=token.encode().decode("latin-1"))
        assert (status, said["error"]) == (401, "The job refuses: the token is wrong.")
    for path, body, expected, words in (
        ("/v1/savepoint", '{"directory": "relative"}', 400, "not an absolute path"),
        ("/v1/savepoint", '{"directory": 5}', 400, "Expected `str | null`, got `int` - at `$.directory`"),
        ("/v1/stop", '{"drain": "yes"}', 400, "Expected `bool | null`, got `str` - at `$.drain`"),
        ("/v1/cancel", '{"retention": "keep"}', 400, "Invalid enum value 'keep' - at `$.retention`"),
        ("/v1/cancel", '{"when": "now"}', 400, "Object contains unknown field `when`"),
        ("/v1/cancel", "not json", 400, "cannot be read"),
        ("/v1/cancel", "[]", 400, "cannot be read"),
        ("/v1/savepoint", json.dumps({"directory": str(tmp_path / "in")}), 409, "it is not empty"),
        ("/v1/nothing", "{}", 404, "There is no POST /v1/nothing"),
    ):
        status, said = ask(job, "POST", path, body)
        assert (status, words in said["error"]) == (expected, True), said
    assert job.state is strobe.JobState.RUNNING
    assert job.status().checkpoints == ()
    token_file = job.home.path(job.home.layout.token)
    right = token_file.read_text()
    token_file.write_text("another")
    with pytest.raises(Failed, match="the token is wrong"):
        call_job(job.home.home, "saved", "GET", "/v1/status")
    token_file.write_text(right)


def test_the_token_is_never_sent_through_a_proxy(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert call_job(world.job.home.home, "saved", "GET", "/v1/status")["state"] == "running"


def test_a_savepoint_during_a_stop_is_refused_and_a_cancel_ends_the_stop(world: World, tmp_path: Path) -> None:
    job = world.job
    home = job.home.home
    world.hold_rows()
    asking, got = in_background(
        lambda: call_job(home, "saved", "POST", "/v1/stop", {"directory": str(tmp_path / "there")}, timeout=None)
    )
    eventually(lambda: under_way(job), "it has begun", job)
    for path in ("/v1/savepoint", "/v1/stop"):
        with pytest.raises(Misuse, match="a stop is under way"):
            call_job(home, "saved", "POST", path, timeout=None)
    canceling, canceled = in_background(lambda: call_job(home, "saved", "POST", "/v1/cancel", timeout=None))
    eventually(lambda: job.state.over, "the cancel is obeyed")
    world.door.open.set()
    canceling.join()
    asking.join()
    assert canceled == [{"job": "saved", "state": "canceled"}]
    assert isinstance(got[0], Failed)
    assert "was canceled meanwhile" in got[0].what
    assert not (tmp_path / "there").exists()


# ── the reference page ──────────────────────────────────────────────────────────────────────────────────────────────


def row(operation: Operation) -> str:
    takes = ", ".join(f"`{name}`" for name in operation.takes.__struct_fields__) or "–"
    answer = "the document" if operation.answer is None else f"`{operation.answer.__name__}`"
    return (
        f"| `{operation.method}` | `{operation.path}` | {operation.summary} | {takes} | "
        f"{'a list of ' if operation.many else ''}{answer} |"
    )


def test_the_reference_page_lists_exactly_the_operations_with_what_they_take_and_answer() -> None:
    page = (ROOT / "docs/reference/control-api.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(?:GET|POST)` .*$", page, re.M) == [row(o) for o in OPERATIONS]
    schemas = msgspec.json.schema_components([o.takes for o in OPERATIONS])[1]
    members = {name: one for o in OPERATIONS for name, one in schemas[o.takes.__name__]["properties"].items()}
    described = re.findall(r"^\| `(\w+)` \| (\w+) \| (.+) \|$", page.split("## What requests take")[1], re.M)
    assert described == [(name, *words(one)) for name, one in members.items()]


def words(member: dict[str, Any]) -> tuple[str, str]:
    one = next(each for each in member["anyOf"] if each.get("type") != "null")
    values = ", ".join(f"`{value}`" for value in one.get("enum", ()))
    return one.get("type", "string"), member["description"] + (f": {values}" if values else "")

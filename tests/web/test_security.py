"""Who may ask, and what every answer forbids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from strobe.web.security import POLICY
from tests.web.homes import a_manifest, a_status, put_manifest, put_runtime, running
from tests.web.pages import Served


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Served]:
    put_manifest(tmp_path, a_manifest("ledger", 3))
    put_runtime(tmp_path, "ledger")
    with Served(tmp_path) as served:
        yield served


def _cookie(page: Served) -> dict[str, str]:
    _, headers, _ = page.ask("GET", f"/?token={page.access.token}")
    return {"Cookie": headers["set-cookie"].partition(";")[0]}


def test_the_token_is_in_the_address_once_and_then_in_a_cookie(page: Served) -> None:
    status, headers, _ = page.ask("GET", f"/?token={page.access.token}")
    assert (status, headers["location"]) == (303, "/")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {part.strip() for part in headers["set-cookie"].split(";")}
    assert page.access.token not in headers["set-cookie"]
    assert page.ask("GET", "/", headers=_cookie(page))[0] == 200
    assert page.ask("GET", "/api/v1/jobs", headers=_cookie(page))[0] == 200


def test_whoever_comes_from_elsewhere_with_the_token_goes_on_from_here(page: Served) -> None:
    """A browser does not send the cookie along while it follows another site's link."""
    status, headers, body = page.ask("GET", f"/?token={page.access.token}", headers={"Sec-Fetch-Site": "cross-site"})
    assert (status, headers["content-security-policy"]) == (200, POLICY)
    assert "SameSite=Strict" in headers["set-cookie"]
    assert b'content="0;url=/"' in body
    assert page.access.token.encode() not in body


@pytest.mark.parametrize("path", ["/", "/api/v1/jobs", "/static/main.js", "/api/v1/events?watch=jobs", "/nothing"])
def test_without_the_token_nothing_is_shown(page: Served, path: str) -> None:
    status, _, body = page.ask("GET", path)
    assert status == 401
    assert b"ledger" not in body
    assert b"strobe ui" in body


@pytest.mark.parametrize("headers", [
    {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eDp5"}, {"Cookie": "strobe=1"}, {"Cookie": '"; ='},
])  # fmt: skip
def test_a_wrong_token_is_refused_in_words(page: Served, headers: dict[str, str]) -> None:
    assert page.ask("GET", "/api/v1/jobs", headers=headers)[0] == 401
    status, _, body = page.ask("GET", "/?token=wrong", headers=headers)
    assert status == 401
    assert b"token is wrong" in body


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", "<b>:{port}"])
def test_a_name_that_is_not_the_servers_is_refused(page: Served, host: str) -> None:
    headers = {**page._bearer, "Host": host.format(port=page.port)}
    status, answer, body = page.ask("GET", "/api/v1/jobs", headers=headers)
    assert status == 421
    assert answer["content-type"] == "application/json"
    assert b"ledger" not in body


def test_the_server_knows_itself_by_its_names(page: Served) -> None:
    for name in ("127.0.0.1", "localhost", "LOCALHOST", "[::1]"):
        assert page.ask("GET", "/api/v1/jobs", headers={**page._bearer, "Host": f"{name}:{page.port}"})[0] == 200


@pytest.mark.parametrize("headers", [
    {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"}, {"Origin": "http://["}, {"Origin": "http://[127.0.0.1"},
])  # fmt: skip
def test_another_site_changes_nothing(tmp_path: Path, headers: dict[str, str]) -> None:
    asked: list[object] = []
    with running(tmp_path, "ledger", lambda b: a_status("ledger"), cancel=asked.append), Served(tmp_path) as page:
        with_cookie = {**_cookie(page), **headers, "Content-Type": "application/json"}
        assert page.ask("POST", "/api/v1/jobs/ledger/cancel", b"{}", with_cookie)[0] == 403
    assert asked == []


def test_a_form_of_another_site_cannot_be_posted(page: Served) -> None:
    headers = {**_cookie(page), "Content-Type": "application/x-www-form-urlencoded"}
    assert page.ask("POST", "/api/v1/jobs/ledger/cancel", b"a=b", headers)[0] == 415


def test_a_request_that_is_too_large_is_not_read(page: Served) -> None:
    headers = {**page._bearer, "Content-Type": "application/json", "Content-Length": str(1 << 30)}
    assert page.ask("POST", "/api/v1/jobs/ledger/cancel", None, headers)[0] == 413


@pytest.mark.parametrize("path", ["/", "/api/v1/jobs", "/static/main.js", "/static/none.js", "/api/v1/none", "/none"])
def test_every_answer_forbids_what_comes_from_elsewhere(page: Served, path: str) -> None:
    for headers in (_cookie(page), {}):
        _, answer, _ = page.ask("GET", path, headers=headers)
        assert answer["content-security-policy"] == POLICY
        assert answer["x-content-type-options"] == "nosniff"
        assert answer["referrer-policy"] == "no-referrer"
    assert "unsafe" not in POLICY
    assert "*" not in POLICY


def test_read_only_orders_nothing_and_shows_everything(tmp_path: Path) -> None:
    asked: list[object] = []
    with (
        running(tmp_path, "ledger", lambda b: a_status("ledger"), checkpoint=asked.append),
        Served(tmp_path, read_only=True) as page,
    ):
        assert page.get("/session")["read_only"] is True
        assert page.get("/jobs")[0]["name"] == "ledger"
        status, said = page.refused("/jobs/ledger/checkpoint", "POST")
    assert (status, said["error"]) == (403, "This page is read-only.")
    assert asked == []


def test_behind_a_proxy_it_lives_below_a_path(tmp_path: Path) -> None:
    put_manifest(tmp_path, a_manifest("ledger", 3))
    with Served(tmp_path, public_url="https://ops.example/tools/strobe") as page:
        assert page.url.startswith("https://ops.example/tools/strobe/?token=")
        proxied = {"Host": "ops.example"}
        assert page.ask("GET", "/tools/strobe", headers=proxied)[1]["location"] == "/tools/strobe/"
        status, headers, _ = page.ask("GET", f"/tools/strobe/?token={page.access.token}", headers=proxied)
        assert (status, headers["location"]) == (303, "/tools/strobe/")
        assert "Path=/tools/strobe;" in headers["set-cookie"]
        assert "Secure" in headers["set-cookie"]
        # A proxy may take the path away, or leave it.
        for path in ("/tools/strobe/api/v1/jobs", "/api/v1/jobs"):
            status, _, body = page.ask("GET", path, headers={**proxied, **page._bearer})
            assert status == 200
            assert json.loads(body)[0]["name"] == "ledger"


def test_files_outside_the_page_are_not_served(page: Served) -> None:
    for path in ("/static/../views.py", "/static/%2e%2e/views.py", "/static//etc/passwd", "/static/..%2fviews.py"):
        assert page.ask("GET", path, headers=_cookie(page))[0] in (400, 404)

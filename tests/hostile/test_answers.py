"""Somebody else listens at the port of a driver that is gone, and answers as no driver would."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from strobe.cli.main import main
from strobe.hosts.live.system.answers import ANSWERS
from strobe.hosts.shared.loopback import request
from strobe.hosts.spark.job.api import answer_kind
from strobe.model.errors import Failed, Misuse
from tests.hostile.answers import NO_OBJECTS, VALID, http
from tests.hostile.homes import LIVE, furnish, held, listening
from tests.hostile.mutations import places
from tests.hostile.world import JOB, build

Asked = tuple[str, str, str]
COMMANDS: Final[dict[Asked, tuple[tuple[str, ...], ...]]] = {
    ("spark", "GET", "/v1/status"): (("status", JOB), ("checkpoints", JOB)),
    ("spark", "POST", "/v1/checkpoint"): (("checkpoint", JOB),),
    ("spark", "POST", "/v1/savepoint"): (("savepoint", JOB),),
    ("spark", "POST", "/v1/stop"): (("stop", JOB),),
    ("spark", "POST", "/v1/cancel"): (("cancel", JOB),),
    ("spark", "POST", "/v1/release"): (("release", JOB, "5"),),
    ("live", "GET", "/v1/status"): (("live", "status", LIVE),),
    ("live", "POST", "/v1/snapshot"): (("live", "snapshot", LIVE),),
    ("live", "POST", "/v1/restore"): (("live", "restore", LIVE, "3"),),
    ("live", "POST", "/v1/kill"): (("live", "kill", "a", "--of", LIVE),),
    ("live", "POST", "/v1/break"): (("live", "break", "node.x > 1", "--of", LIVE),),
    ("live", "POST", "/v1/down"): (("live", "down", LIVE),),
}
# A newer driver may say more, so the answer to a question with a short answer may be a longer one.
FITS_TOO: Final = {
    (("spark", "POST", "/v1/cancel"), ("spark", "GET", "/v1/status")),
    (("live", "POST", "/v1/snapshot"), ("live", "POST", "/v1/break")),
}


def named(asked: Asked) -> str:
    return " ".join(asked)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("template")
    build(root)
    furnish(root / "template" / "home")
    return root / "template" / "home"


@pytest.fixture
def home(template: Path, tmp_path: Path) -> Iterator[Path]:
    shutil.copytree(template, tmp_path / "home")
    with held(tmp_path / "home"):
        yield tmp_path / "home"


def run(words: tuple[str, ...], home: Path, body: bytes) -> tuple[int, int]:
    """Exit code and port."""
    with listening(body) as port:
        for job in (JOB, LIVE):
            runtime = home / "jobs" / job / "runtime.json"
            runtime.write_text(json.dumps({**json.loads(runtime.read_bytes()), "port": port}))
        with pytest.raises(SystemExit) as stopped:
            main([*words, "--home", str(home)])
    return int(stopped.value.code or 0), port


@pytest.mark.parametrize("asked", COMMANDS, ids=named)
def test_a_command_says_that_a_stranger_answers(asked: Asked, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    who = f"job {JOB!r}" if asked[0] == "spark" else f"system {LIVE!r}"
    others = [json.dumps(v).encode() for k, v in VALID.items() if (asked, k) not in FITS_TOO and v != VALID[asked]]
    for words in COMMANDS[asked]:
        for form in (words, (*words, "--json")):
            for body in (b"[]", b"null", b"7", b'"status"', b"{}", b'{"checkpoints":{}}', b'{"a":[1]}', *others):
                code, port = run(form, home, http(body))
                told = "".join(capsys.readouterr())
                assert code == 1, (form, body, told)
                assert f"What answers at port {port} is not {who}" in told, (form, body, told)
                assert "Traceback" not in told


@pytest.mark.parametrize("asked", COMMANDS, ids=named)
def test_a_command_takes_what_a_driver_answers(asked: Asked, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Else the test above would pass whatever is answered. A newer driver may say more."""
    for words in COMMANDS[asked]:
        for form in (words, (*words, "--json")):
            code, _ = run(form, home, http(json.dumps({**VALID[asked], "new": [1]}).encode()))
            assert code == 0, capsys.readouterr()


@pytest.mark.parametrize("asked", COMMANDS, ids=named)
def test_a_command_takes_an_answer_without_one_of_its_members_or_says_why_not(
    asked: Asked, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An older driver may not know a member that has been added since."""
    for words in COMMANDS[asked]:
        for missing in VALID[asked]:
            less = {name: value for name, value in VALID[asked].items() if name != missing}
            code, port = run(words, home, http(json.dumps(less).encode()))
            told = "".join(capsys.readouterr())
            assert code == 0 or f"What answers at port {port} is not" in told, (missing, told)


def ask(asked: Asked, body: bytes, token: Path) -> dict[str, Any]:
    host, method, path = asked
    kind = answer_kind(method, path) if host == "spark" else ANSWERS[method, path]
    with listening(body) as port:
        return request(port, token, method, path, who="job 'x'", gone="Run it.", kind=kind)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("abc")
    return tmp_path / "token"


@pytest.mark.parametrize("asked", VALID, ids=named)
def test_every_member_of_an_answer_is_checked(asked: Asked, token: Path) -> None:
    for index, (where, _, _) in enumerate(places(VALID[asked])):
        value = json.loads(json.dumps(VALID[asked]))
        _, parent, key = list(places(value))[index]
        if asked[2] == "/v1/break" and where.startswith((".states.", ".channels.")):
            continue  # states and messages, which are anything
        parent[key] = [[]] if isinstance(parent[key], dict) else {"a": {}}
        with pytest.raises(Failed, match="is not job 'x'"):
            ask(asked, http(json.dumps(value).encode()), token)


@pytest.mark.parametrize("body", NO_OBJECTS, ids=lambda body: repr(body[:20]))
def test_what_is_no_object_is_no_answer_of_any_driver(body: bytes, token: Path) -> None:
    if body != b'{"error":null}':
        with pytest.raises(Failed, match="is not job 'x'"):
            ask(("spark", "GET", "/v1/openapi.json"), http(body), token)
    for status in ("400 x", "401 x", "409 x", "500 x"):
        with pytest.raises(Failed, match="is not job 'x'"):
            ask(("spark", "GET", "/v1/status"), http(body, status), token)


def test_numbers_that_cannot_be_shown_are_no_figures(token: Path) -> None:
    asked = ("spark", "POST", "/v1/savepoint")
    for number in ("1" + "0" * 400, "-1" + "0" * 400, "1e400", "NaN", "Infinity"):
        body = json.dumps(VALID[asked]).replace("1000", number).encode()
        with pytest.raises(Failed, match="is not job 'x'"):
            ask(asked, http(body), token)


def test_what_a_driver_refuses_is_told_in_its_own_words(token: Path) -> None:
    body = b'{"error":"It is taken.","untouched":"Nothing was changed.","next":"Wait."}'
    for status, kind in (("409 x", Misuse), ("500 x", Failed)):
        with pytest.raises(kind) as refused:
            ask(("spark", "POST", "/v1/stop"), http(body, status), token)
        assert (refused.value.what, refused.value.untouched, refused.value.next) == (
            "It is taken.", "Nothing was changed.", "Wait.",
        )  # fmt: skip

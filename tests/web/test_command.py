"""`strobe ui` as people type it: what it refuses, what it says, how little it takes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
import webbrowser
from pathlib import Path

import pytest

from strobe.cli.main import main
from strobe.model.errors import Failed, Misuse
from strobe.web import serving
from strobe.web.serving import Options, bind
from tests.web.homes import a_manifest, put_manifest

HEAVY = {"pyspark", "py4j", "deltalake", "pyarrow", "pandas", "numpy", "duckdb"}


def strobe(*words: str, cwd: Path) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "strobe.cli.main", *words]
    return subprocess.Popen(line, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_it_says_where_it_is_serves_and_ends(tmp_path: Path) -> None:
    put_manifest(tmp_path / ".strobe", a_manifest("ledger", 1))
    with strobe("ui", "--port", "0", "--json", cwd=tmp_path) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        while lines[-1].strip() not in ("}", ""):
            lines.append(process.stdout.readline())
        said = json.loads("".join(lines))
        try:
            token = said["url"].partition("=")[2]
            asked = urllib.request.Request(
                f"{said['address']}/api/v1/jobs", headers={"Authorization": f"Bearer {token}"}
            )
            with urllib.request.urlopen(asked, timeout=60) as answer:
                assert json.load(answer)[0]["name"] == "ledger"
            used = Path(f"/proc/{process.pid}/status")
            if used.exists():
                resident = next(
                    int(line.split()[1]) for line in used.read_text().splitlines() if line.startswith("VmRSS")
                )
                assert resident < 80 * 1024
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_it_loads_no_spark() -> None:
    program = "import sys, strobe.web.serving; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


def test_a_port_in_use_is_said_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(Failed, match=f"Port {port} is in use") as refused:
            bind(Options(tmp_path, port=port))
    assert "--port 0" in refused.value.next


def test_a_home_that_is_none_is_said_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="There is no home directory"):
        bind(Options(tmp_path / "nowhere", port=0))
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(Misuse, match="is not a home directory of Strobe"):
        bind(Options(tmp_path, port=0))
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(Misuse, match="There is no home directory"):
        bind(Options(file, port=0))


@pytest.mark.parametrize("url", ["ops.example", "ftp://ops.example", "https://", "https://ops.example/?a=b"])
def test_a_public_url_that_is_none_is_refused(tmp_path: Path, url: str) -> None:
    (tmp_path / "jobs").mkdir()
    with pytest.raises(Misuse, match="is not the address of a page"):
        bind(Options(tmp_path, port=0, public_url=url))


def test_an_address_that_is_not_of_this_machine_is_said(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    with pytest.raises(Failed, match="cannot be listened on"):
        bind(Options(tmp_path, host="203.0.113.7", port=0))


def test_a_short_token_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs").mkdir()
    monkeypatch.setenv("STROBE_UI_TOKEN", "short")
    with pytest.raises(Misuse, match="fewer than 16 characters"):
        bind(Options(tmp_path, port=0))
    monkeypatch.setenv("STROBE_UI_TOKEN", "long enough for a token")
    served = bind(Options(tmp_path, port=0))
    served.socket.close()
    assert served.url.endswith("?token=long%20enough%20for%20a%20token")


def test_the_browser_is_opened_without_the_token_on_a_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user of the machine can read command lines."""
    (tmp_path / "jobs").mkdir()
    given: list[tuple[str, int, int, str]] = []

    def opened(address: str) -> bool:
        file = Path(urllib.parse.urlsplit(address).path)
        given.append((address, file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777, file.read_text()))
        return True

    monkeypatch.setenv("STROBE_UI_TOKEN", "a-token-that-nobody-sees")
    monkeypatch.setattr(webbrowser, "open", opened)
    monkeypatch.setattr(serving, "serve", lambda served, ready: served.socket.close() or ready())
    with pytest.raises(SystemExit, match="0"):
        main(["ui", "--home", str(tmp_path), "--port", "0", "--open"])
    ((address, mode, above, content),) = given
    assert address.startswith("file:///")
    assert "a-token-that-nobody-sees" not in address
    assert (mode, above) == (0o600, 0o700)
    assert "/?token=a-token-that-nobody-sees" in content
    assert not Path(urllib.parse.urlsplit(address).path).exists()

"""What a job says of itself, read back: by whoever looks, whatever the file holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from strobe.model.errors import Damaged
from strobe.store.layout import JobLayout
from strobe.store.runtime import LIVE, Runtime, read_runtime, runtime_json


def put(home: Path, text: bytes) -> None:
    path = home / JobLayout("shop").runtime
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)


def test_what_was_said_is_read_back(tmp_path: Path) -> None:
    said = Runtime(kind=LIVE, pid=7, port=None, error="ü", settings={"a": {"trigger": "1 s"}}, topology="bank.toml")
    put(tmp_path, runtime_json(said).encode())
    assert read_runtime(tmp_path, "shop") == said


def test_one_that_never_ran_has_said_nothing(tmp_path: Path) -> None:
    assert read_runtime(tmp_path, "shop") is None


def test_what_an_older_or_newer_strobe_said_is_understood(tmp_path: Path) -> None:
    put(tmp_path, b'{"state": "running", "pid": 7, "colour": {"of": "tomorrow"}}')
    assert read_runtime(tmp_path, "shop") == Runtime(state="running", pid=7)


@pytest.mark.parametrize("text", [
    b"", b"{", b"null", b"[]", b"\xff", b'{"pid": "7"}', b'{"port": 1.5}', b'{"settings": {"a": 1}}', b"[" * 100_000,
    b'{"state": "\\ud800"}', b'{"pid": ' + b"9" * 400 + b"}", b'{"port": 70000}',
])  # fmt: skip
def test_nonsense_is_said_with_the_file_and_the_way_out(tmp_path: Path, text: bytes) -> None:
    put(tmp_path, text)
    with pytest.raises(Damaged, match=r"jobs/shop/runtime\.json cannot be read") as found:
        read_runtime(tmp_path, "shop")
    assert "writes a new one" in found.value.next

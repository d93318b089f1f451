"""Who holds a job, asked of whatever lies where its lock should be."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from strobe.hosts.live.coordinator.record import RecordFile
from strobe.hosts.spark.home.job_home import JobHome
from strobe.model.errors import Failed
from strobe.store.holding import is_held
from strobe.store.layout import JobLayout


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(path.parent, os.O_DIRECTORY)  # the name of a socket is short
        try:
            server.bind(f"/proc/self/fd/{here}/{path.name}")
        finally:
            os.close(here)


STRANGE: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "socket": _socket,
    "directory": Path.mkdir,
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.fixture(params=STRANGE)
def lock(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / JobLayout("j").lock
    path.parent.mkdir(parents=True)
    STRANGE[request.param](path)
    return path


def test_something_that_is_no_lock_is_held_by_nobody(lock: Path, tmp_path: Path) -> None:
    assert not is_held(tmp_path, "j")


def test_a_driver_and_a_live_system_refuse_it_and_name_it(lock: Path, tmp_path: Path) -> None:
    with pytest.raises(Failed) as refused:
        JobHome(tmp_path, "j").claim(lambda reason: None)
    assert str(lock) in str(refused.value)
    record = RecordFile(tmp_path, "j")
    with pytest.raises(Failed) as refused:
        record.open()
    assert str(lock) in str(refused.value)


def test_neither_writes_a_lock_through_a_link(tmp_path: Path) -> None:
    lock = tmp_path / JobLayout("j").lock
    lock.parent.mkdir(parents=True)
    (tmp_path / "precious").write_text("precious")
    lock.symlink_to(tmp_path / "precious")
    with pytest.raises(Failed):
        JobHome(tmp_path, "j").claim(lambda reason: None)
    with pytest.raises(Failed):
        RecordFile(tmp_path, "j").open()
    assert (tmp_path / "precious").read_text() == "precious"

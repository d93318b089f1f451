"""`strobe inspect`, `verify` and `dispose`, as a person types them."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
from pathlib import Path

import pytest

from strobe.cli import jobs
from strobe.model.ids import Incarnation, SnapshotId
from strobe.model.kind import Kind
from strobe.store.codec import root_of
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JobLayout, SavepointLayout
from strobe.store.manifest import Manifest
from strobe.store.places import settle
from strobe.store.snapshots import SnapshotStore
from tests.cli.conftest import Strobe
from tests.store.snapshot_samples import JOB, filesystem_store, manifest, take, tree

LAYOUT = JobLayout(JOB)
FILES = {"state/1": b"one", "state/2": b"x" * 300, "commits/1": b""}


@pytest.fixture
def savepoint(tmp_path: Path) -> Manifest:
    store = SnapshotStore(FilesystemStore(tmp_path / "sav"), SavepointLayout("", SnapshotId(7)), JOB)
    with store.begin(SnapshotId(7)) as session:
        made = manifest(7, session.put_files(FILES).files, kind=Kind.SAVEPOINT)
        session.complete(made)
    assert isinstance(store.objects, FilesystemStore)
    store.objects.close()
    return made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home in which job ledger has run, and has checkpoints 1 and 2."""
    home = tmp_path / ".strobe"
    store = filesystem_store(home)
    take(store, 1, {"a": b"shared", "b": b"one"})
    take(store, 2, {"a": b"shared", "b": b"two"})
    memory = {"incarnation": Incarnation(1), "timeline": 1, "snapshot": 2, "generation": 0}
    (home / LAYOUT.incarnation).write_text(str(memory).replace("'", '"'))
    return home


# ── verify ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_root_that_was_noted_is_compared(strobe: Strobe, savepoint: Manifest, tmp_path: Path) -> None:
    root = root_of(savepoint)
    assert strobe("verify", "sav", "--root", root).code == 0
    assert strobe("verify", "sav", "--root", root.upper()).code == 0
    other = strobe("verify", "sav", "--root", "0" * 64)
    assert other.code == 1
    assert f"The root of snapshot 7 is {root}, not {'0' * 64}" in other.out
    shutil.move(tmp_path / "sav", tmp_path / "moved")
    assert strobe("verify", "moved", "--root", root, "--json").json["root"] == root


@pytest.mark.parametrize("root", ["", "abc", "g" * 64, "0" * 65, "5f2c…"])
def test_a_root_that_is_none_is_refused(strobe: Strobe, savepoint: Manifest, root: str) -> None:
    done = strobe("verify", "sav", "--root", root)
    assert (done.code, "64 hex digits" in done.err) == (2, True)


def test_a_snapshot_that_was_replaced_by_another_sound_one_is_found_by_its_root(strobe: Strobe, home: Path) -> None:
    root = strobe("inspect", f"{JOB}/1", "--json").json["root"]
    store = filesystem_store(home)
    store.dispose(SnapshotId(1))
    take(store, 1, {"a": b"shared", "b": b"forged"})
    assert strobe("verify", f"{JOB}/1").code == 0
    assert strobe("verify", f"{JOB}/1", "--root", root).code == 1


def test_a_flipped_byte_in_any_file_is_found_and_named(strobe: Strobe, savepoint: Manifest, tmp_path: Path) -> None:
    place = tmp_path / "sav"
    owners = {ref.sha256: path.removeprefix("nodes/balances/files/") for path, ref in savepoint.blobs()}
    whole = tree(place)
    assert len(whole) == 4
    for name, content in whole.items():
        for position in range(0, len(content), 1 if len(content) < 20 else 37):
            changed = bytearray(content)
            changed[position] ^= 0x41
            (place / name).write_bytes(changed)
            done = strobe("verify", "sav", "--json")
            assert done.code in (1, 2), (name, position)
            said = done.out
            assert owners.get(Path(name).name, "manifest.json") in said, (name, position, said)
        (place / name).write_bytes(content + b"x")
        assert strobe("verify", "sav").code == 1
        (place / name).unlink()
        assert strobe("verify", "sav").code in (1, 2)
        (place / name).write_bytes(content)
    assert strobe("verify", "sav").code == 0


# ── what is no snapshot ─────────────────────────────────────────────────────────────────────────────────────────────

COMMANDS = ("inspect", "verify", "dispose")


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_snapshot_is_refused(strobe: Strobe, command: str, home: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").write_bytes(b"x")
    before = tree(tmp_path)
    for name in ("photos", "./photos/one.jpg", "./nowhere", f"{JOB}/9", "nobody/1", ".strobe", f"{JOB}/x", "s3://X"):
        done = strobe(command, name)
        assert done.code == 2, (name, done)
        assert done.err.startswith("error: ")
        assert "Traceback" not in done.err
    assert tree(tmp_path) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_a_newer_format_is_refused_as_such(strobe: Strobe, command: str, savepoint: Manifest, tmp_path: Path) -> None:
    path = tmp_path / "sav" / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"format":2', b'"format":3'))
    before = tree(tmp_path)
    done = strobe(command, str(tmp_path / "sav"))
    assert done.code == 2
    assert "has format 3; this Strobe reads formats up to 2" in done.err
    assert tree(tmp_path) == before


@pytest.mark.parametrize("cut", [0, 1, 100, -1, -70])
def test_a_manifest_that_was_cut_short_is_damage(strobe: Strobe, savepoint: Manifest, tmp_path: Path, cut: int) -> None:
    path = tmp_path / "sav" / "manifest.json"
    path.write_bytes(path.read_bytes()[:cut])
    before = tree(tmp_path)
    for command in COMMANDS:
        done = strobe(command, str(tmp_path / "sav"))
        assert done.code == 1, (command, done)
        assert "manifest.json" in done.err + done.out
    assert tree(tmp_path) == before


def test_a_checkpoint_that_was_moved_away_from_its_job_says_so(strobe: Strobe, home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / LAYOUT.directory(SnapshotId(1)), tmp_path / "moved")
    done = strobe("verify", "moved")
    assert done.code == 1
    assert "a checkpoint cannot be moved away from its job" in done.err


# ── dispose ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_savepoint_is_disposed_of(strobe: Strobe, savepoint: Manifest, tmp_path: Path) -> None:
    done = strobe("dispose", "sav", "--json")
    assert done.json == {"job": JOB, "snapshot": 7, "where": str(tmp_path / "sav"), "bytes": 303}
    assert not (tmp_path / "sav").exists()
    assert strobe("dispose", "sav").code == 2


def test_a_checkpoint_is_disposed_of(strobe: Strobe, home: Path) -> None:
    done = strobe("dispose", f"{JOB}/1")
    assert (done.code, "snapshot 1 of job ledger is gone" in done.out) == (0, True)
    assert strobe("verify", f"{JOB}/2").code == 0
    assert filesystem_store(home).list() == (2,)


def test_a_checkpoint_of_a_running_job_is_refused(strobe: Strobe, home: Path) -> None:
    lock = os.open(home / LAYOUT.lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        for force in ((), ("--force",)):
            done = strobe("dispose", f"{JOB}/1", *force)
            assert (done.code, "is running" in done.err) == (2, True)
    finally:
        os.close(lock)
    assert filesystem_store(home).list() == (1, 2)


def test_a_job_alone_is_not_taken_for_its_newest_checkpoint(strobe: Strobe, home: Path) -> None:
    done = strobe("dispose", JOB)
    assert (done.code, "does not say which snapshot" in done.err) == (2, True)
    assert filesystem_store(home).list() == (1, 2)


def test_a_checkpoint_whose_home_is_unknown_needs_force(strobe: Strobe, tmp_path: Path) -> None:
    place = tmp_path / "store"
    take(SnapshotStore(settle(tmp_path / "gone", JOB, str(place)), LAYOUT, JOB), 1, {"a": b"x"})
    name = str(place / LAYOUT.directory(SnapshotId(1)))
    assert strobe("dispose", name).code == 2
    assert strobe("dispose", name, "--force").code == 0
    assert set(tree(place)) == {LAYOUT.owner}


def test_snapshots_in_a_bucket_are_shown_checked_and_disposed_of(strobe: Strobe, s3_url: str, home: Path) -> None:
    store = SnapshotStore(settle(home, JOB, s3_url), LAYOUT, JOB)
    take(store, 3, {"a": b"x"})
    take(store, 4, {"a": b"y"})
    assert [c["snapshot"] for c in strobe("checkpoints", JOB, "--json").json["retained"]] == [3, 4]
    assert strobe("inspect", f"{s3_url}/jobs/{JOB}", "--json").json["snapshot"] == 4
    assert strobe("verify", f"{s3_url}/jobs/{JOB}/snapshots/chk-000003").code == 0
    assert strobe("dispose", f"{JOB}/3").code == 0
    assert store.list() == (4,)


def test_a_bucket_that_cannot_be_reached_is_said_without_credentials(
    strobe: Strobe, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = strobe("verify", "s3://no-such-bucket/x")
    assert (missing.code, "no bucket 'no-such-bucket'" in missing.err) == (2, True)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://someone:hidden@127.0.0.1:1")
    gone = strobe("verify", s3_url)
    assert (gone.code, "did not answer" in gone.err) == (1, True)
    for secret in ("hidden", os.environ["AWS_SECRET_ACCESS_KEY"], os.environ["AWS_ACCESS_KEY_ID"]):
        assert secret not in gone.err + missing.err


def test_what_to_type_next_can_be_typed(strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory whose name has a space or a quote in it is quoted for the shell."""
    place = str(tmp_path / "it's friday")
    done = {"snapshot": 7, "job": "shop", "bytes_total": 1, "rows_in_flight": 0, "path": place, "root": "ab"}
    monkeypatch.setattr(jobs, "_check_live", lambda session, job: None)
    monkeypatch.setattr(jobs, "call_job", lambda *_, **__: done)
    said = strobe("savepoint", "shop", place).out
    (line,) = [line for line in said.splitlines() if line.startswith("next: ")]
    assert shlex.split(line)[1:6] == ["strobe", "run", "-s", place, "FILE"]

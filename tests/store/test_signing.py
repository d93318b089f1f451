"""Snapshots that say who made them: signed with a private key, checked with the public one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from strobe.cli.main import main
from strobe.hosts.spark.pipeline.config import CheckpointConfig
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.model.errors import Damaged, Misuse
from strobe.model.ids import SnapshotId
from strobe.store.base import ObjectStore
from strobe.store.codec import root_of
from strobe.store.fencing import current_layout, take_over
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JobLayout, SavepointLayout
from strobe.store.locate import locate
from strobe.store.s3 import S3Store
from strobe.store.signing import SIGNED_BY, public_key, signer
from strobe.store.snapshots import SnapshotStore
from tests.store.snapshot_samples import JOB, filesystem_store, take
from tests.support.keys import key_pair

LAYOUT = JobLayout(JOB)
Keys = Callable[[str], tuple[str, str]]


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return partial(key_pair, tmp_path)


def signed(objects: ObjectStore, private: str) -> SnapshotStore:
    return SnapshotStore(objects, LAYOUT, JOB, sign=signer(private))


def where(home: Path, snapshot: int) -> str:
    return str(home / LAYOUT.directory(SnapshotId(snapshot)))


def test_a_signed_snapshot_is_taken_and_is_sound(tmp_path: Path, keys: Keys) -> None:
    private, public = keys("mine")
    store = signed(FilesystemStore(tmp_path / "home"), private)
    take(store, 1, {"a": b"x"})
    assert locate(where(tmp_path / "home", 1), tmp_path, signed_by=public).snapshot == 1
    assert store.verify(SnapshotId(1)) == ()  # the signature is no stranger there


@pytest.mark.parametrize("case", ["unsigned", "another key", "another content", "no JSON", "another kind", "too large"])
def test_anything_else_is_refused(tmp_path: Path, keys: Keys, case: str) -> None:
    (private, public), (other, _) = keys("mine"), keys("other")
    objects = FilesystemStore(tmp_path / "home")
    take(signed(objects, other if case == "another key" else private), 1, {"a": b"x"})
    take(signed(objects, private), 2, {"a": b"y"})
    key = LAYOUT.signature(SnapshotId(1))
    match case:
        case "unsigned":
            objects.delete(key)
        case "another content":
            objects.put(key, objects.get(LAYOUT.signature(SnapshotId(2))))
        case "no JSON":
            objects.put(key, b"\xff")
        case "another kind":
            objects.put(key, json.dumps({**json.loads(objects.get(key)), "algorithm": "none"}).encode())
        case "too large":
            objects.put(key, b" " * 100_000 + objects.get(key))
    with pytest.raises(Damaged, match="is refused"):
        locate(where(tmp_path / "home", 1), tmp_path, signed_by=public)
    assert locate(where(tmp_path / "home", 2), tmp_path, signed_by=public).snapshot == 2


def test_a_savepoint_takes_its_signature_along(tmp_path: Path, keys: Keys) -> None:
    private, public = keys("mine")
    store = SnapshotStore(
        FilesystemStore(tmp_path / "sp"), SavepointLayout("", SnapshotId(4)), JOB, sign=signer(private)
    )
    take(store, 4, {"a": b"x"})
    shutil.copytree(tmp_path / "sp", tmp_path / "moved")
    assert locate(str(tmp_path / "moved"), tmp_path, signed_by=public).snapshot == 4


def test_a_signature_goes_with_its_snapshot_and_comes_through_a_takeover(s3_url: str, keys: Keys) -> None:
    private, public = keys("mine")
    store = signed(S3Store(s3_url), private)
    take(store, 1, {"a": b"x"})
    take(store, 2, {"a": b"y"})
    store.dispose(SnapshotId(1))
    store.objects.put(LAYOUT.signature(SnapshotId(3)), b"of one that was given up")
    store.sweep()
    assert list(S3Store(s3_url).list(LAYOUT.manifests)) == [
        LAYOUT.manifest(SnapshotId(2)), LAYOUT.signature(SnapshotId(2))
    ]  # fmt: skip
    take_over(S3Store(s3_url), JOB, incarnation=2, generation=1)
    assert current_layout(S3Store(s3_url), JOB).epoch == 1
    assert locate(f"{s3_url}/jobs/{JOB}", Path(), signed_by=public).snapshot == 2


def test_the_command_and_the_policy_refuse_what_is_not_signed(
    tmp_path: Path, keys: Keys, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    private, public = keys("mine")
    objects = FilesystemStore(tmp_path / "home")
    take(signed(objects, private), 1, {"a": b"x"})
    take(SnapshotStore(objects, LAYOUT, JOB), 2, {"a": b"x"})

    def verify(snapshot: int, *more: str) -> tuple[int, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["verify", where(tmp_path / "home", snapshot), *more])
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out + captured.err

    assert verify(1, "--signed-by", public)[0] == 0
    code, said = verify(2, "--signed-by", public)
    assert (code, "it is not signed" in " ".join(said.split())) == (1, True)
    assert verify(2)[0] == 0
    monkeypatch.setenv(SIGNED_BY, public)
    assert verify(2)[0] == 1
    assert RestoreOptions().signer() == public
    monkeypatch.setenv("KEY", Path(public).read_text())
    assert verify(1, "--signed-by", "env:KEY")[0] == 0


@pytest.mark.parametrize("read", [signer, public_key])
def test_what_is_no_key_is_said(tmp_path: Path, read: Callable[[str], object]) -> None:
    (tmp_path / "junk").write_text("junk")
    for key in (str(tmp_path / "gone"), str(tmp_path / "junk"), "env:STROBE_NO_SUCH_KEY", "/dev/zero", "a\0b", "/"):
        with pytest.raises(Misuse):
            read(key)
    with pytest.raises(Misuse, match="sign_with"):
        CheckpointConfig(sign_with="")


@pytest.mark.parametrize("policy", ["signed by", "root"])
def test_a_manifest_that_is_replaced_after_the_check_is_not_used(policy: str, tmp_path: Path, keys: Keys) -> None:
    private, public = keys("a")
    store = signed(FilesystemStore(tmp_path / "home"), private)
    root = root_of(take(store, 5, {"a": b"1"}))
    take(filesystem_store(tmp_path / "other"), 5, {"a": b"2"})
    found = locate(f"{JOB}/5", tmp_path / "home", **({"root": root} if policy == "root" else {"signed_by": public}))
    assert root_of(found.load()) == root
    assert root_of(locate(f"{JOB}/5", tmp_path / "home").load()) == root
    shutil.copy(tmp_path / "other" / LAYOUT.manifest(SnapshotId(5)), tmp_path / "home" / LAYOUT.manifest(SnapshotId(5)))
    with pytest.raises(Damaged, match="was replaced after it was checked"):
        found.load()
    with pytest.raises(Damaged, match="was replaced after it was checked"):
        replace(found, where="there").load()

"""Snapshots of live systems that say who made them, and starts that take no others."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strobe.hosts.live.api.topology import read_topology
from strobe.hosts.live.snapshot import snapshots
from strobe.hosts.live.snapshot.reading import load_named
from strobe.model.errors import Damaged, Misuse
from strobe.model.kind import Kind
from strobe.store.codec import root_of
from strobe.store.locate import Located, locate
from strobe.store.manifest import Manifest
from strobe.store.signing import SIGNED_BY
from tests.support.keys import key_pair
from tests.support.live.systems import bank, run, system


def test_checkpoints_and_savepoints_are_signed_and_a_start_takes_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (private, public), (_, other) = key_pair(tmp_path, "ours"), key_pair(tmp_path, "theirs")
    topology = replace(bank(), sign_with=private)
    there = tmp_path / "there"

    async def work() -> None:
        live = system(topology, tmp_path / "home")
        try:
            await live.start()
            number = await live.snapshot()
            await live.snapshot(Kind.SAVEPOINT, directory=there)
        finally:
            await live.stop()
        assert locate(f"bank/{number}", tmp_path / "home", signed_by=public).snapshot == number
        for start, refused in (({"signed_by": other}, Damaged), ({"signed_by": public}, None)):
            live = system(topology, tmp_path / "elsewhere", restore=str(there), **start)
            try:
                if refused is None:
                    await live.start()
                else:
                    with pytest.raises(refused, match="signed"):
                        await live.start()
            finally:
                await live.stop()
        monkeypatch.setenv(SIGNED_BY, other)  # the policy of a machine
        live = system(topology, tmp_path / "third", restore=str(there))
        with pytest.raises(Damaged, match="signed"):
            await live.start()
        await live.stop()

    run(work, 120)


def test_the_key_is_named_in_the_topology_from_where_that_is(tmp_path: Path) -> None:
    file = tmp_path / "bank.toml"
    nodes = '\nchannels = []\n[nodes.a]\nclass = "tests.support.live.apps:Account"\n'
    file.write_text(f'sign_with = "keys/ours.pem"{nodes}')
    assert read_topology(file).sign_with == str(tmp_path / "keys/ours.pem")
    file.write_text(f'sign_with = "env:KEY"{nodes}')
    assert read_topology(file).sign_with == "env:KEY"
    file.write_text(f"sign_with = 7{nodes}")
    with pytest.raises(Misuse, match="sign_with"):
        read_topology(file)


def test_a_key_that_cannot_be_used_is_said_before_anything_starts(tmp_path: Path) -> None:
    async def work() -> None:
        live = system(replace(bank(), sign_with=str(tmp_path / "none.pem")), tmp_path / "home")
        with pytest.raises(Misuse, match=r"none\.pem"):
            await live.start()
        await live.stop()

    run(work)


def test_what_is_put_in_the_place_of_a_checked_snapshot_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can write there swaps the manifest between the check of its signature and its use."""
    private, public = key_pair(tmp_path, "ours")
    topology = replace(bank(), sign_with=private)
    there, other = tmp_path / "there", tmp_path / "other"

    async def work() -> None:
        async with system(topology, tmp_path / "home") as live:
            await live.snapshot(Kind.SAVEPOINT, directory=there)
        async with system(bank(), tmp_path / "elsewhere") as live:
            await live.snapshot(Kind.SAVEPOINT, directory=other)

    run(work, 120)
    load = Located.load
    loads: list[str] = []

    def swapping(found: Located) -> Manifest:
        manifest = load(found)
        loads.append(found.where)
        if len(loads) == 2:  # after the second look, which compares the root, nobody looks again
            shutil.copytree(other, there, dirs_exist_ok=True)
        return manifest

    ours = root_of(locate(str(there), tmp_path).load())
    assert root_of(locate(str(other), tmp_path).load()) != ours
    monkeypatch.setattr(Located, "load", swapping)
    read: list[str] = []
    check = snapshots.check_fits

    def noting(manifest: Manifest, *rest: Any) -> None:
        read.append(root_of(manifest))
        check(manifest, *rest)

    monkeypatch.setattr(snapshots, "check_fits", noting)
    load_named(str(there), tmp_path, topology, public)
    assert len(loads) == 2
    assert read == [ours]

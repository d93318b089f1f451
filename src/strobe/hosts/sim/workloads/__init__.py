"""The workloads by name. One file each: its docstring is its specification."""

from __future__ import annotations

from collections.abc import Mapping

from strobe.hosts.sim.workloads.bank import Bank
from strobe.hosts.sim.workloads.base import Script, Workload
from strobe.model.cut import Json
from strobe.model.errors import Misuse

__all__ = ["WORKLOADS", "Script", "Workload", "workload"]

WORKLOADS: dict[str, type[Workload]] = {cls.name: cls for cls in (Bank,)}


def workload(name: str, nodes: int | None = None, params: Mapping[str, Json] | None = None) -> Workload:
    if name not in WORKLOADS:
        raise Misuse(f"There is no workload called {name!r}.", next=f"Choose one of: {', '.join(WORKLOADS)}.")
    return WORKLOADS[name](nodes, params)

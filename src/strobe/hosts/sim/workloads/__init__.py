"""The workloads by name. One file each: its docstring is its specification."""

from __future__ import annotations

from collections.abc import Mapping

from strobe.hosts.sim.workloads.bank import Bank
from strobe.hosts.sim.workloads.base import Script, Workload
from strobe.hosts.sim.workloads.dataflow import Dataflow
from strobe.hosts.sim.workloads.diffusing import Diffusing
from strobe.hosts.sim.workloads.feedback_loop import FeedbackLoop
from strobe.hosts.sim.workloads.objects import Objects
from strobe.hosts.sim.workloads.philosophers import Philosophers
from strobe.hosts.sim.workloads.token_ring import TokenRing
from strobe.hosts.sim.workloads.two_process import TwoProcess
from strobe.model.cut import Json
from strobe.model.errors import Misuse

__all__ = ["WORKLOADS", "Script", "Workload", "workload"]

WORKLOADS: dict[str, type[Workload]] = {
    cls.name: cls for cls in (Bank, TokenRing, Philosophers, Objects, Diffusing, TwoProcess, Dataflow, FeedbackLoop)
}


def workload(name: str, nodes: int | None = None, params: Mapping[str, Json] | None = None) -> Workload:
    if name not in WORKLOADS:
        raise Misuse(f"There is no workload called {name!r}.", next=f"Choose one of: {', '.join(WORKLOADS)}.")
    return WORKLOADS[name](nodes, params)

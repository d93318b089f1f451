"""What cannot be meant is refused before anything runs, in one sentence, with what to do next."""

from __future__ import annotations

from typing import Any

import pytest

from strobe.hosts.sim.faults import Faults
from strobe.hosts.sim.network import delays
from strobe.hosts.sim.protocols import PROTOCOLS, protocol
from strobe.hosts.sim.runner import SimConfig, config_of, run
from strobe.hosts.sim.topology import joined, node_names
from strobe.hosts.sim.workloads import WORKLOADS, workload
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId
from strobe.verify.journal import Header

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"workload": "bonk"}, "no workload called 'bonk'"),
    ({"protocol": "chandy"}, "no protocol called 'chandy'"),
    ({"nodes": 0}, "at least 1 nodes, not 0"),
    ({"nodes": -3}, "at least 1 nodes, not -3"),
    ({"workload": "philosophers", "nodes": 1}, "at least 2 nodes, not 1"),
    ({"workload": "two-process", "nodes": 3}, "at most 2 nodes, not 3"),
    ({"params": {"transfer": 3}}, "no parameter 'transfer'"),
    ({"params": {"transfers": "many"}}, "cannot be 'many'"),
    ({"params": {"transfers": True}}, "cannot be True"),
    ({"params": {"balance": -1}}, "cannot be -1"),
    ({"params": {"graph": "torus"}}, "no graph called 'torus'"),
    ({"workload": "two-process", "params": {"example": "third"}}, "no example 'third'"),
    ({"order": "sideways"}, "cannot be 'sideways'"),
    ({"snapshots": -1}, "-1 snapshots"),
    ({"delays": "gaussian"}, "no delays called 'gaussian'"),
    ({"delays": "uniform:9:3"}, "longest delay below the shortest"),
    ({"delays": "fixed:soon"}, "does not name delays"),
    ({"delays": "fixed:1:2"}, "does not name delays"),
    ({"initiators": (NodeId("n9"),)}, "No node named 'n9'"),
    ({"params": {"graph": "ring"}, "protocol": "aligned", "initiators": (NodeId("n1"),)}, "lets nobody choose"),
]


@pytest.mark.parametrize(("changes", "sentence"), REFUSED)
def test_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Misuse) as error:
        run(SimConfig(**changes))
    assert sentence in error.value.what
    assert error.value.next


@pytest.mark.parametrize("name", [name for name, spec in PROTOCOLS.items() if spec.needs_fifo])
def test_a_fifo_protocol_is_refused_on_channels_that_reorder(name: str) -> None:
    with pytest.raises(Misuse, match="needs channels that keep the order"):
        run(SimConfig(protocol=name, order="reorder"))
    run(SimConfig(protocol=name, order="reorder", force=True))


def test_nodes_that_no_marker_reaches_are_named() -> None:
    config = SimConfig("dataflow", nodes=4, initiators=(NodeId("map1"),))
    with pytest.raises(Misuse, match="never reaches source1"):
        run(config)


def test_left_to_itself_a_protocol_starts_wherever_it_must() -> None:
    """Several components: one initiator would not do."""
    nodes = node_names(5)
    graph = joined(nodes, [(nodes[0], nodes[1]), (nodes[2], nodes[3]), (nodes[3], nodes[2])])
    for snapshot in range(1, 6):
        initiators = protocol("chandy-lamport").initiators(graph, snapshot)
        graph.check_reachable(initiators)
        assert len(initiators) <= 4


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("crush=1", "no fault called 'crush'"), ("lose=often", "whole number"), ("lose=1001", "0 to 1000")],
)
def test_faults_that_make_no_sense_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(Misuse) as error:
        Faults.parse(text)
    assert sentence in str(error.value)


def test_faults_are_written_as_on_the_command_line() -> None:
    assert Faults.parse("lose=20, crashes=2,slow") == Faults(lose=20, crashes=2, slow=1)
    assert Faults.parse("duplicate-markers=5") == Faults(duplicate_markers=5)
    assert Faults.parse("") == Faults()


def test_only_a_journal_of_the_simulator_can_be_repeated() -> None:
    load = workload("bank")
    initial = {node: load.initial(node) for node in load.graph.nodes}
    header = Header("live", "bank", {}, "chandy-lamport", "fifo", None, load.graph, initial)
    with pytest.raises(Misuse, match="live host"):
        config_of(header)


def test_every_name_in_the_registries_is_described() -> None:
    for name, kind in WORKLOADS.items():
        assert kind.name == name
        assert kind.description.endswith(".")
        assert kind.__module__
    for name, spec in PROTOCOLS.items():
        assert spec.name == name
        assert spec.description.endswith(".")


def test_delays_have_the_shape_that_their_name_promises() -> None:
    assert set(delays("fixed:7").table) == {7}
    assert (min(delays("uniform:3:9").table), max(delays("uniform:3:9").table)) == (3, 9)
    tail = sorted(delays("long-tailed:2:400").table)
    assert tail[0] == 2
    assert tail[512] <= 4  # half take at most twice the least
    assert tail[-1] == 400
    assert sum(d >= 100 for d in tail) > 10
    assert delays("bursty:1:5:40").period == 40

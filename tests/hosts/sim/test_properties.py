"""Whatever the graph, the protocol, the delays and the harmless faults: snapshots are right and the run ends well."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st

from strobe.hosts.sim.faults import Faults
from strobe.hosts.sim.protocols import PROTOCOLS
from strobe.hosts.sim.runner import SimConfig, run
from strobe.hosts.sim.workloads import WORKLOADS
from tests.hosts.sim.test_snapshots import verified

CORRECT = sorted(name for name, spec in PROTOCOLS.items() if spec.is_correct)

harmless = st.builds(Faults, partitions=st.integers(0, 2), slow=st.integers(0, 2), crashes=st.integers(0, 2))
delays = st.one_of(
    st.sampled_from(["long-tailed", "bursty", "fixed:1"]),
    st.tuples(st.integers(1, 5), st.integers(5, 60)).map(lambda pair: f"uniform:{pair[0]}:{pair[1]}"),
)
graphs = st.fixed_dictionaries(
    {
        "transfers": st.integers(0, 12),
        "graph": st.sampled_from(["complete", "ring", "line", "random", "anything"]),
        "channels": st.integers(1, 12),
        "graph_seed": st.integers(0, 2**16),
    }
)


@st.composite
def configs(draw: st.DrawFn) -> SimConfig:
    protocol = draw(st.sampled_from(CORRECT))
    name = draw(st.sampled_from(sorted(WORKLOADS)))
    bank = name == "bank"
    return SimConfig(
        name,
        draw(graphs) if bank else {},
        nodes=draw(st.integers(1, 5)) if bank else None,
        protocol=protocol,
        order="fifo" if PROTOCOLS[protocol].needs_fifo else draw(st.sampled_from(["fifo", "reorder"])),
        seed=draw(st.integers(0, 2**32)),
        snapshots=draw(st.integers(0, 5)),
        delays=draw(delays),
        faults=draw(harmless),
        alignment_timeout=draw(st.integers(1, 60)),
    )


@given(configs())
def test_every_run_of_a_correct_protocol_verifies(config: SimConfig) -> None:
    result = verified(config)
    busy = any(any(cut.channels.values()) for cut in result.cuts)
    event(f"{config.protocol}, {'something' if busy else 'nothing'} in flight")
    assert len(result.cuts) + len(result.aborted) == config.snapshots


@given(configs(), st.integers(0, 2**32))
def test_chance_decides_when_things_happen_but_not_what_comes_out(config: SimConfig, other: int) -> None:
    """Two seeds of a dataflow: different runs, the same sink."""
    here = replace(config, workload="dataflow", params={"records": 8}, nodes=5, order="fifo", journal=False)
    first, second = run(here), run(replace(here, seed=other))
    for node in ("count1", "sink"):
        assert first.states[node] == second.states[node]  # type: ignore[index]

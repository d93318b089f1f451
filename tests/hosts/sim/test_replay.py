"""The same seed gives the same journal, byte for byte, on any machine and Python version."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from strobe.hosts.sim.faults import Faults
from strobe.hosts.sim.runner import SimConfig, config_of, run
from strobe.model.events import Internal, MarkerReceived, MarkerSent, Received, Recorded, Sent
from strobe.verify.journal import read_journal
from tests.support.journals import journal_bytes

GOLDEN = Path(__file__).with_name("golden_journals.txt")

# Between them: every delay distribution, both orders, every kind of fault, several workloads and protocols.
CONFIGS = {
    "bank": SimConfig("bank", nodes=4, seed=1, snapshots=3),
    "bank-random-graph": SimConfig("bank", {"graph": "anything", "graph_seed": 5}, nodes=6, seed=2, delays="bursty"),
    "bank-reorder": SimConfig("bank", nodes=3, seed=3, protocol="lai-yang", order="reorder", snapshots=2),
    "bank-faults": SimConfig("bank", seed=4, faults=Faults(lose=30, duplicate=30, partitions=2, slow=1)),
    "bank-forced": SimConfig("bank", seed=5, order="reorder", force=True, delays="long-tailed", snapshots=2),
    "dataflow-crash": SimConfig("dataflow", seed=6, protocol="aligned", snapshots=3, faults=Faults(crashes=2)),
    "dataflow-timeout": SimConfig("dataflow", {"skew": 4}, seed=7, protocol="aligned-with-timeout", snapshots=3),
    "feedback-loop": SimConfig("feedback-loop", seed=8, protocol="unaligned", snapshots=2),
    "philosophers": SimConfig("philosophers", seed=9, protocol="agreed-clock", delays="fixed:7"),
    "token-ring": SimConfig("token-ring", seed=10, protocol="freeze-in-turn"),
}


def digest(config: SimConfig) -> str:
    journal = run(config).journal
    assert journal is not None
    return hashlib.sha256(journal_bytes(journal)).hexdigest()


def golden() -> dict[str, str]:
    return dict(line.split() for line in GOLDEN.read_text().splitlines() if line and not line.startswith("#"))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_run_gives_the_journal_that_it_gave_when_the_golden_file_was_written(
    name: str, request: pytest.FixtureRequest
) -> None:
    found = digest(CONFIGS[name])
    if request.config.getoption("--rewrite"):
        lines = {**(golden() if GOLDEN.exists() else {}), name: found}
        text = "# sha256 of each run's journal; rewrite with pytest --rewrite\n"
        GOLDEN.write_text(text + "".join(f"{key} {lines[key]}\n" for key in sorted(lines)))
    assert found == golden()[name], f"{CONFIGS[name]}"


@pytest.mark.parametrize("hash_seed", ["0", "1", "12345"])
def test_hash_order_has_no_say(hash_seed: str) -> None:
    """Another process, with another order of sets: the journal is the same."""
    code = (
        "from tests.hosts.sim.test_replay import CONFIGS, digest\n"
        "for name in ('bank', 'dataflow-crash', 'bank-faults', 'dataflow-timeout'): print(name, digest(CONFIGS[name]))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, check=True
    )
    expected = golden()
    for line in done.stdout.splitlines():
        name, found = line.split()
        assert found == expected[name], name


@pytest.mark.parametrize("name", CONFIGS)
def test_the_header_alone_repeats_the_run(name: str) -> None:
    first = run(CONFIGS[name]).journal
    assert first is not None
    header, events = read_journal(BytesIO(journal_bytes(first)))
    again = run(config_of(header)).journal
    assert again is not None
    assert journal_bytes(again) == journal_bytes(first)
    assert len(again.events) == len(events)


def test_another_seed_gives_another_run() -> None:
    assert len({digest(replace(CONFIGS["bank"], seed=seed)) for seed in range(20)}) == 20


def test_leaving_the_journal_out_changes_nothing_else() -> None:
    for config in CONFIGS.values():
        loud, quiet = run(config), run(replace(config, journal=False))
        assert quiet.journal is None
        assert (quiet.states, quiet.time, quiet.events) == (loud.states, loud.time, loud.events), config
        assert quiet.cuts == loud.cuts, config


def test_the_number_of_events_is_that_of_the_journal() -> None:
    """Sends, receipts, internal actions, records and markers: each is one line."""
    kinds = (Internal, Sent, Received, Recorded, MarkerSent, MarkerReceived)
    for config in CONFIGS.values():
        result = run(config)
        assert result.journal is not None
        assert result.events == sum(isinstance(event, kinds) for event in result.journal.events), config

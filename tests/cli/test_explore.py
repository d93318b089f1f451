"""`strobe sim explore`, as a user meets it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from strobe.hosts.sim.mutants import MUTANTS
from strobe.hosts.sim.workloads import WORKLOADS
from tests.cli.conftest import Strobe


def test_all_schedules_of_two_branches_are_counted_and_well(strobe: Strobe) -> None:
    done = strobe("sim", "explore", "bank", "--nodes", "2")
    assert done.code == 0
    assert done.out.splitlines() == [
        "bank: 2 nodes, 2 channels, chandy-lamport, fifo channels, 1 snapshot",
        "102 schedules, 95 distinct states, 150 transitions, 6 different snapshots",
        "no violation: every snapshot in every schedule is a consistent cut",
    ]


def test_a_wrong_protocol_shows_its_faults_and_the_smallest_run(strobe: Strobe) -> None:
    done = strobe("sim", "explore", "two-process", "--protocol", "agreed-clock")
    assert done.code == 1
    lines = done.out.splitlines()
    assert "violations: 6 schedules of 12" in lines
    assert "  ! snapshot 1: 50 vanished: the two banks have 400 together." in lines
    assert "  ! snapshot 1: 50 appeared: the two banks have 400 together." in lines
    shown = lines.index("The smallest run found that fails (2 nodes, 1 channel, 3 choices):")
    *schedule, failure = lines[shown + 1 :]
    assert schedule == ["   1. act A", "   2. initiate A snapshot 1", "   3. initiate B snapshot 1"]
    assert failure.startswith("  ! snapshot 1, channel A-B (A→B): message 1 was sent before A recorded")


def test_the_failing_run_can_be_written_drawn_and_verified(strobe: Strobe) -> None:
    args = ("sim", "explore", "two-process", "--protocol", "agreed-clock", "--journal", "e.journal", "--svg", "e.svg")
    assert strobe(*args).out.splitlines()[-2:] == ["journal: e.journal", "diagram: e.svg"]
    verified = strobe("sim", "verify", "e.journal", "--svg", "again.svg")
    assert verified.code == 1
    assert "not consistent" in verified.out
    assert Path("e.svg").read_bytes() == Path("again.svg").read_bytes()


def test_of_a_run_that_lost_nodes_on_the_way_the_invariant_is_not_asked(strobe: Strobe) -> None:
    args = ("sim", "explore", "bank", "--protocol", "agreed-clock", "--max-states", "500", "--journal", "e.journal")
    answer = strobe(*args, "--json").json
    assert len(answer["smallest"]["nodes"]) < answer["nodes"]
    verified = strobe("sim", "verify", "e.journal")
    assert verified.code == 1
    assert "not consistent" in verified.out
    assert "not reachable" in verified.out
    assert "invariant" not in verified.out


def test_where_all_is_well_there_is_no_run_to_write(strobe: Strobe) -> None:
    done = strobe("sim", "explore", "two-process", "--journal", "e.journal")
    assert done.code == 0
    assert not Path("e.journal").exists()


def test_json_has_the_counts_and_the_schedules(strobe: Strobe) -> None:
    answer = strobe("sim", "explore", "two-process", "-p", "agreed-clock", "--json").json
    assert (answer["ok"], answer["complete"], answer["schedules"], answer["failing"]) == (False, True, 12, 6)
    assert answer["smallest"]["schedule"] == ["act A", "initiate A snapshot 1", "initiate B snapshot 1"]
    assert answer["smallest"]["channels"] == ["A-B"]
    assert {"kind", "sentence", "snapshot", "schedule"} <= answer["violations"][0].keys()


def test_a_mutant_brings_its_protocol_along_and_is_caught(strobe: Strobe) -> None:
    name = next(name for name, mutant in MUTANTS.items() if "chandy-lamport" in mutant.protocols)
    done = strobe("sim", "explore", "two-process", "--mutant", name, "--json")
    assert done.code == 1
    assert (done.json["mutant"], done.json["protocol"]) == (name, MUTANTS[name].protocols[0])


def test_stopping_early_is_said_and_is_exit_code_1(strobe: Strobe) -> None:
    done = strobe("sim", "explore", "bank", "--nodes", "2", "--max-states", "20")
    assert done.code == 1
    assert "not everything was explored: it stopped at " in done.out
    assert "no violation" not in done.out


def test_progress_goes_to_standard_error_in_lines_when_that_is_no_terminal(strobe: Strobe) -> None:
    done = strobe("sim", "explore", "bank", "--nodes", "2", "--snapshots", "3")
    assert done.code == 0
    assert done.err
    assert all(" % explored, " in line and line.endswith(" states") for line in done.err.splitlines())
    assert "explored" not in done.out


def test_on_a_terminal_there_is_a_bar() -> None:
    screen, terminal = os.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "strobe.cli.main", "sim", "explore", "two-process"],
        stdout=subprocess.PIPE,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm"},
        text=True,
        check=True,
    )
    os.close(terminal)
    shown = os.read(screen, 65536).decode()
    os.close(screen)
    assert "exploring" in shown
    assert "100 %" in shown
    assert done.stdout.endswith("no violation: every snapshot in every schedule is a consistent cut\n")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("bnak",), "There is no workload called 'bnak'."),
        (("bank", "--script", "four"), "There is no script called 'four'."),
        (("bank", "--nodes", "9"), "The workload 'bank' has no script with 9 nodes."),
        (("bank", "--script", "two-transfers", "-n", "3"), "The script 'two-transfers' has 2 nodes, not 3."),
        (("bank", "--mutant", "lazy"), "There is no mutant called 'lazy'."),
        (("bank", "--protocol", "none"), "There is no protocol called 'none'."),
        (("bank", "--initiator", "n9"), "No node named 'n9' to start a snapshot from."),
        (("bank", "--channels", "reorder"), "chandy-lamport needs channels that keep"),
        (("bank", "--max-states", "0"), "'0' is not a whole number from 1 up."),
        (("bank", "--svg", "no/dir/e.svg"), "--svg cannot write to 'no/dir/e.svg': there is no directory 'no/dir'."),
    ],
)
def test_bad_input_is_one_clear_sentence_and_exit_code_2(args: tuple[str, ...], sentence: str, strobe: Strobe) -> None:
    done = strobe("sim", "explore", *args)
    assert done.code == 2
    assert done.out == ""
    assert sentence in done.err.splitlines()[0]


@pytest.mark.parametrize("workload", [name for name, load in WORKLOADS.items() if load.scripts()])
def test_every_workload_has_a_script_that_can_be_explored(workload: str, strobe: Strobe) -> None:
    done = strobe("sim", "explore", workload, "--max-states", "300", "--json")
    assert done.json["violations"] == []
    assert done.json["states"] <= 300

"""`strobe sim run`, `verify` and `list`, as a user meets them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from strobe.hosts.sim.protocols import PROTOCOLS
from strobe.hosts.sim.workloads import WORKLOADS
from tests.cli.conftest import Done, Strobe

GOOD = [name for name, spec in PROTOCOLS.items() if spec.is_correct]
WRONG = [name for name, spec in PROTOCOLS.items() if not spec.is_correct]


def refused(done: Done) -> str:
    """The sentence of a call that was refused: exit code 2, nothing on standard output, one line that says why."""
    assert done.code == 2, done
    assert done.out == ""
    first, *rest = done.err.splitlines()
    assert first.startswith("error: ")
    assert all(line.startswith(("       ", "next:  ")) for line in rest), done.err
    assert "Traceback" not in done.err
    return first.removeprefix("error: ")


# ── run ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_tells_what_ran_and_how_each_snapshot_did(strobe: Strobe) -> None:
    done = strobe("sim", "run", "bank", "--snapshots", "2", "--seed", "3")
    assert done.code == 0
    system, counts, first, second = done.out.splitlines()
    assert system == "bank: 4 nodes, 12 channels, chandy-lamport, fifo channels, seed 3"
    assert counts.endswith("24 markers"), "one for each channel and snapshot"
    for number, line in enumerate((first, second), 1):
        assert line.startswith(f"snapshot {number}: consistent, ")
        assert "invariant holds" in line
        assert "reachable (" in line


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("protocol", GOOD)
def test_every_workload_runs_well_under_every_correct_protocol(workload: str, protocol: str, strobe: Strobe) -> None:
    done = strobe("sim", "run", workload, "--protocol", protocol, "--snapshots", "2", "--seed", "5", "--json")
    assert done.json["ok"], done.json
    assert done.code == 0
    assert all(s["consistent"] and s["invariant"] is None and s["proof"]["holds"] for s in done.json["snapshots"])


@pytest.mark.parametrize("protocol", WRONG)
def test_a_wrong_protocol_is_caught_with_sentences_and_exit_code_1(protocol: str, strobe: Strobe) -> None:
    done = strobe("sim", "run", "bank", "--protocol", protocol, "--seed", "1")
    assert done.code == 1
    assert "snapshot 1: not consistent, 0 messages in flight, invariant broken, not reachable" in done.out
    assert "! Snapshot 1: n" in done.out
    assert " vanished: " in done.out or " appeared: " in done.out


def test_json_holds_the_whole_verdict(strobe: Strobe) -> None:
    answer = strobe("sim", "run", "bank", "-n", "3", "--protocol", "agreed-clock", "--seed", "2", "--json").json
    assert (answer["ok"], answer["nodes"], answer["channels"], answer["seed"]) == (False, 3, 6, 2)
    (snapshot,) = answer["snapshots"]
    assert snapshot["consistent"] is False
    assert snapshot["invariant"] is not None
    assert snapshot["proof"]["holds"] is False
    assert {"rule", "sentence", "message", "events"} <= answer["violations"][0].keys()


def test_the_same_seed_gives_the_same_journal_and_picture(strobe: Strobe) -> None:
    for name in ("a", "b"):
        strobe("sim", "run", "bank", "--seed", "9", "--journal", f"{name}.journal", "--svg", f"{name}.svg")
    assert Path("a.journal").read_bytes() == Path("b.journal").read_bytes()
    assert Path("a.svg").read_bytes() == Path("b.svg").read_bytes()
    strobe("sim", "run", "bank", "--seed", "10", "--journal", "c.journal")
    assert Path("a.journal").read_bytes() != Path("c.journal").read_bytes()


def test_the_files_that_were_written_are_named(strobe: Strobe) -> None:
    args = ("sim", "run", "bank", "--journal", "run.journal", "--svg", "run.svg")
    assert strobe(*args).out.splitlines()[-2:] == ["journal: run.journal", "diagram: run.svg"]
    answer = strobe(*args, "--json").json
    assert (answer["journal"], answer["svg"]) == ("run.journal", "run.svg")
    assert ET.parse("run.svg").getroot().tag.endswith("svg")


def test_parameters_reach_the_workload(strobe: Strobe) -> None:
    answer = strobe("sim", "run", "bank", "--param", "transfers=2", "--param", "graph=ring", "--json").json
    assert answer["messages"] == 8
    assert answer["channels"] == 4


def test_crashes_partitions_and_slow_nodes_break_nothing(strobe: Strobe) -> None:
    done = strobe("sim", "run", "bank", "-k", "3", "--faults", "crashes=2,partitions=1,slow=1", "--seed", "4", "--json")
    assert done.code == 0
    assert done.json["crashes"] == 2


def test_a_lossy_channel_is_told_and_is_exit_code_1(strobe: Strobe) -> None:
    done = strobe("sim", "run", "bank", "--faults", "lose=100", "--seed", "4")
    assert done.code == 1
    assert " lost" in done.out
    assert "At the end of the run: " in done.out


def test_a_run_that_ends_badly_is_exit_code_1_even_if_no_snapshot_shows_it(strobe: Strobe) -> None:
    done = strobe("sim", "run", "bank", "--snapshots", "0", "--faults", "lose=100", "--seed", "4")
    assert done.code == 1
    assert "  ! At the end of the run: " in done.out


def test_a_fifo_protocol_on_reordering_channels_is_refused(strobe: Strobe) -> None:
    sentence = refused(strobe("sim", "run", "bank", "--channels", "reorder"))
    assert sentence == (
        "chandy-lamport needs channels that keep the order, but these reorder: its snapshots would be wrong."
    )


def test_forced_onto_reordering_channels_the_verifier_shows_the_violation(strobe: Strobe) -> None:
    codes = []
    for seed in range(5):
        done = strobe("sim", "run", "bank", "--channels", "reorder", "--force", "--seed", str(seed))
        codes.append(done.code)
        assert done.code == 0 or "  ! " in done.out
    assert 1 in codes


def test_a_run_without_snapshots_is_well(strobe: Strobe) -> None:
    done = strobe("sim", "run", "bank", "--snapshots", "0")
    assert done.code == 0
    assert "snapshot" not in done.out


# ── bad input ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_unknown_workload_names_the_nearest_and_all(strobe: Strobe) -> None:
    done = strobe("sim", "run", "bnak")
    assert refused(done) == "There is no workload called 'bnak'."
    assert f"Did you mean 'bank'? The workloads are: {', '.join(WORKLOADS)}." in done.err


def test_an_unknown_protocol_names_the_nearest_and_all(strobe: Strobe) -> None:
    done = strobe("sim", "run", "bank", "--protocol", "chandylamport")
    assert refused(done) == "There is no protocol called 'chandylamport'."
    assert "Did you mean 'chandy-lamport'? " in done.err


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (("--nodes", "0"), "needs at least 1 node"),
        (("--nodes", "x"), "'x' is not a whole number from 0 up."),
        (("--nodes", "-3"), "'-3' is not a whole number from 0 up."),
        (("--seed", "x"), "'x' is not a whole number from 0 up."),
        (("--seed", "-1"), "'-1' is not a whole number from 0 up."),
        (("--seed", "1.5"), "'1.5' is not a whole number from 0 up."),
        (("--snapshots", "-1"), "'-1' is not a whole number from 0 up."),
        (("--channels", "lossy"), "'lossy' is not one of 'fifo', 'reorder'."),
        (("--faults", "fire=1"), "There is no fault called 'fire'."),
        (("--faults", "lose=x"), "The fault lose needs a whole number, not 'x'."),
        (("--faults", "lose=1001"), "The fault lose cannot be 1001."),
        (("--delays", "slow"), "There are no delays called 'slow'."),
        (("--param", "transfers"), "--param 'transfers' is not of the form name=value."),
        (("--param", "speed=1"), "has no parameter 'speed'."),
        (("--param", "transfers=many"), "cannot be 'many'."),
        (("--initiator", "n9"), "No node named 'n9' to start a snapshot from."),
        (("--svg", "no/such/dir/run.svg"), "there is no directory 'no/such/dir'."),
        (("--svg", "."), "it is a directory."),
        (("--journal", "no/such/dir/run.journal"), "there is no directory 'no/such/dir'."),
    ],
)
def test_bad_input_is_one_clear_sentence_and_exit_code_2(args: tuple[str, ...], part: str, strobe: Strobe) -> None:
    assert part in refused(strobe("sim", "run", "bank", *args))


def test_nodes_that_no_marker_can_reach_are_named(strobe: Strobe) -> None:
    done = strobe("sim", "run", "dataflow", "--initiator", "sink")
    assert "never reaches" in refused(done)


def test_a_file_that_cannot_be_written_is_refused_before_the_run(strobe: Strobe) -> None:
    done = strobe("sim", "run", "bank", "--svg", "missing/run.svg", "--journal", "run.journal")
    assert "Nothing was run." in done.err
    assert not Path("run.journal").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission_is_refused(strobe: Strobe, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    assert "you may not write there" in refused(strobe("sim", "run", "bank", "--svg", "closed/run.svg"))


# ── verify ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_journal_reads_like_the_run_it_is_of(strobe: Strobe) -> None:
    ran = strobe("sim", "run", "bank", "--seed", "6", "--journal", "run.journal")
    verified = strobe("sim", "verify", "run.journal")
    assert verified.code == 0
    assert verified.out + "journal: run.journal\n" == ran.out


def test_a_wrong_snapshot_in_a_journal_is_exit_code_1_and_drawn(strobe: Strobe) -> None:
    strobe("sim", "run", "bank", "--protocol", "freeze-in-turn", "--seed", "1", "--journal", "run.journal")
    done = strobe("sim", "verify", "run.journal", "--svg", "run.svg")
    assert done.code == 1
    assert "not consistent" in done.out
    assert "Snapshot 1 is wrong." in Path("run.svg").read_text()


def test_without_the_proof_nothing_is_replayed(strobe: Strobe) -> None:
    strobe("sim", "run", "bank", "--journal", "run.journal")
    done = strobe("sim", "verify", "run.journal", "--no-proof", "--json")
    assert done.json["snapshots"][0]["proof"] is None
    assert done.json["unproved"] == "--no-proof"


def rewrite(source: str, target: str, old: str, new: str) -> None:
    """A journal with something replaced in it, and the end line that fits."""
    *lines, _ = Path(source).read_text().splitlines()
    body = "".join(f"{line}\n" for line in lines)
    assert old in body
    body = body.replace(old, new)
    digest = hashlib.sha256(body.encode()).hexdigest()
    Path(target).write_text(f'{body}["end",{len(lines) - 1},"{digest}"]\n')


def test_a_journal_of_another_host_is_verified_and_says_why_it_is_not_proved(strobe: Strobe) -> None:
    strobe("sim", "run", "bank", "--journal", "run.journal")
    rewrite("run.journal", "live.journal", '"host":"sim"', '"host":"live"')
    done = strobe("sim", "verify", "live.journal")
    assert done.code == 0
    assert "snapshot 1: consistent, " in done.out
    assert "not proved: it is of live processes; --topology FILE brings their classes." in done.out


def test_a_state_that_the_run_never_leads_to_is_not_reachable_and_exit_code_1(strobe: Strobe) -> None:
    """Two balances in the snapshot changed against each other: a consistent cut, the right sum, and still a lie."""
    strobe("sim", "run", "two-process", "--seed", "1", "--journal", "run.journal")
    text = Path("run.journal").read_text()
    state = next(line for line in text.splitlines() if line.startswith('["snapshot"'))
    lie = state.replace('"balance":150', '"balance":149').replace('"balance":250', '"balance":251')
    rewrite("run.journal", "lie.journal", state, lie)
    done = strobe("sim", "verify", "lie.journal")
    assert "snapshot 1: consistent, 0 messages in flight, invariant holds, not reachable" in done.out
    assert done.code == 1


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (lambda data: b"", "line 1: the file is empty"),
        (lambda data: data[: len(data) // 2], "breaks off"),
        (lambda data: data.replace(b'"send"', b'"sent"', 1), "there is no kind of event 'sent'"),
        (lambda data: data.replace(b"[\"internal\",\"n1\",1,", b"[\"internal\",\"n9\",1,", 1), "n9"),
        (lambda data: b"\xff" + data, "not UTF-8"),
        (lambda data: data[:-20] + b"0" + data[-19:], "hash does not fit"),
    ],
    ids=["empty", "cut off", "unknown kind", "unknown node", "not text", "changed"],
)  # fmt: skip
def test_a_damaged_journal_is_one_sentence_that_names_file_and_line_and_exit_code_2(
    damage: object, part: str, strobe: Strobe
) -> None:
    assert callable(damage)
    strobe("sim", "run", "bank", "--journal", "run.journal")
    Path("run.journal").write_bytes(damage(Path("run.journal").read_bytes()))
    sentence = refused(strobe("sim", "verify", "run.journal"))
    assert sentence.startswith("Journal run.journal, line ")
    assert part in sentence


@pytest.mark.parametrize("sim", [1, "x", None, [], {}, *({"nodes": n} for n in ("3", 2, 100_000, 10**300))])
def test_a_journal_that_claims_another_system_is_not_believed(sim: object, strobe: Strobe, tmp_path: Path) -> None:
    strobe("sim", "run", "bank", "--nodes", "3", "--snapshots", "1", "--journal", "j")
    header, *lines, _ = Path("j").read_text().splitlines()
    value = json.loads(header)
    value["workload"]["params"]["sim"] = sim
    done = strobe("sim", "verify", sealed(tmp_path, json.dumps(value), *lines))
    assert "snapshot 1: consistent" in done.out
    assert "Traceback" not in done.err


@pytest.mark.parametrize("channels", [10**9, -1, "x", None, [1]])
def test_nor_is_one_that_claims_more_channels(channels: object, strobe: Strobe, tmp_path: Path) -> None:
    strobe("sim", "run", "bank", "--nodes", "3", "--snapshots", "1", "--journal", "j")
    header, *lines, _ = Path("j").read_text().splitlines()
    value = json.loads(header)
    value["workload"]["params"] |= {"channels": channels, "graph": "random"}
    done = strobe("sim", "verify", sealed(tmp_path, json.dumps(value), *lines))
    assert "snapshot 1: consistent" in done.out
    assert "not proved" in done.out


def test_states_that_the_workload_does_not_know_and_a_number_that_was_sent_twice_are_said(
    strobe: Strobe, tmp_path: Path
) -> None:
    strobe("sim", "run", "bank", "--nodes", "3", "--snapshots", "1", "--journal", "j")
    *lines, _ = Path("j").read_text().splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith('["snapshot"'))
    value = json.loads(lines[at])
    value[1]["states"]["n1"] = None
    odd = strobe("sim", "verify", sealed(tmp_path, *lines[:at], json.dumps(value), *lines[at + 1 :]))
    assert (odd.code, "cannot be asked of these states" in odd.out) == (1, True)
    held, content = next((channel, content) for channel, content in value[1]["channels"].items() if content)
    sends = (n for n, line in enumerate(lines) if line.startswith('["send"'))
    sent = next(n for n in sends if f'"{held}",{content[0][0]},' in lines[n])
    twice = strobe("sim", "verify", sealed(tmp_path, *lines[: sent + 1], *lines[sent:]))
    assert (twice.code, "sent more than one message" in twice.out) == (1, True)


def sealed(tmp_path: Path, *lines: str) -> str:
    """The file of a journal whose end line fits."""
    body = "".join(f"{line}\n" for line in lines)
    end = json.dumps(["end", len(lines) - 1, hashlib.sha256(body.encode()).hexdigest()])
    (tmp_path / "sealed").write_text(f"{body}{end}\n")
    return str(tmp_path / "sealed")


def test_a_journal_that_is_not_there_is_exit_code_2(strobe: Strobe) -> None:
    assert refused(strobe("sim", "verify", "none.journal")).startswith("Cannot read a journal from 'none.journal'")


# ── list ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_list_has_a_line_for_each_workload_and_protocol(strobe: Strobe) -> None:
    lines = strobe("sim", "list").out.splitlines()
    described = {name: load.description for name, load in WORKLOADS.items()}
    described |= {name: spec.description for name, spec in PROTOCOLS.items()}
    for name, description in described.items():
        assert [line for line in lines if line.startswith(f"  {name} ") and line.endswith(f"  {description}")]


def test_list_as_json_has_parameters_and_promises(strobe: Strobe) -> None:
    answer = strobe("sim", "list", "--json").json
    assert [w["name"] for w in answer["workloads"]] == list(WORKLOADS)
    assert {p["name"]: p["needs_fifo"] for p in answer["protocols"]}["lai-yang"] is False


def test_the_installed_command_is_this_one(tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "strobe"
    done = subprocess.run(
        [command, "sim", "run", "bank", "--protocol", "agreed-clock", "--seed", "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "not consistent" in done.stdout


def test_garbage_is_found_in_simulated_systems_and_a_reference_in_flight_keeps_its_object(strobe: Strobe) -> None:
    run = strobe("sim", "run", "objects", "--seed", "5", "--snapshots", "3", "--check", "garbage", "--json")
    assert run.code in (0, 1), run.err
    found = strobe("sim", "explore", "objects", "--script", "hand-over", "--check", "garbage")
    assert "garbage: 1 of 1 object can go" in found.out
    assert "deliver n1-n2" in found.out, "before the reference has come, the object is in use"
    none = strobe("sim", "explore", "objects", "--script", "migrate", "--check", "garbage")
    assert "can go" not in none.out

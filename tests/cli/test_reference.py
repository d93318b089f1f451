"""The reference page and the registries say the same; the tutorial's picture is the one that its command draws."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import click
import pytest

from strobe.cli.sim import sim
from strobe.hosts.sim.faults import Faults
from strobe.hosts.sim.protocols import PROTOCOLS
from strobe.hosts.sim.workloads import WORKLOADS
from strobe.verify.violation import MEANING
from tests.cli.conftest import Strobe

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "sim.md").read_text(encoding="utf-8")
PICTURE = ROOT / "docs" / "images" / "consistent-cut.svg"


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def value(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


@pytest.mark.parametrize("command", [name for name in sim.commands if name != "list"])
def test_every_option_has_a_row(command: str) -> None:
    text = section(command)
    everywhere = PAGE.split("\n## run\n")[0]
    for parameter in sim.commands[command].params:
        if isinstance(parameter, click.Option):
            for option in (*parameter.opts, *parameter.secondary_opts):
                assert re.search(rf"`{option}[ `|\\,]", text + everywhere), f"{option} of {command} is not described"


def test_every_workload_has_a_row_with_its_nodes_parameters_and_scripts() -> None:
    rows = [line for line in section("Workloads").splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{name}` | {load.default_nodes} | "
        + " ".join(f"`{key}={value(default)}`" for key, default in load.defaults.items())
        + " | "
        + ", ".join(f"`{script}` ({made.nodes} nodes)" for script, made in load.scripts().items())
        + " |"
        for name, load in WORKLOADS.items()
    ]


def test_every_protocol_has_a_row_with_the_channels_that_it_needs() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (fifo|any) \|", section("Protocols"), re.MULTILINE)
    assert rows == [(name, "fifo" if spec.needs_fifo else "any") for name, spec in PROTOCOLS.items()]


def test_every_fault_is_described() -> None:
    described = set(re.findall(r"`([a-z-]+)`", "".join(re.findall(r"^\| (`.*?) \|", section("Faults"), re.MULTILINE))))
    assert described == {field.name.replace("_", "-") for field in fields(Faults)}


def test_every_rule_of_the_verifier_is_described() -> None:
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", section("Rules"), re.MULTILINE))
    assert rows == {rule.value: meaning for rule, meaning in MEANING.items()}


def test_the_tutorials_picture_is_what_its_command_draws(strobe: Strobe, request: pytest.FixtureRequest) -> None:
    tutorial = (ROOT / "docs" / "tutorial" / "consistent-cuts.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^\$ strobe (sim run bank .* --svg bank\.svg)$", tutorial, re.MULTILINE)
    strobe(*line.split())
    drawn = Path("bank.svg").read_bytes()
    if request.config.getoption("--rewrite"):
        PICTURE.write_bytes(drawn)
    assert PICTURE.read_bytes() == drawn, "draw it again with pytest --rewrite, and look at it"

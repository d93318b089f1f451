"""The reference page says what the command line, the topology file and the package have: no more, and no less."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

import strobe.hosts.live as package
from strobe.cli.live import live
from strobe.hosts.live import Process, System
from strobe.hosts.live.api.topology import IN_NUMBERS, IN_SECONDS, OF_NODES, OF_TLS, PROTOCOLS, SETTINGS

PAGE = (Path(__file__).parents[4] / "docs" / "reference" / "live.md").read_text(encoding="utf-8")
EVERYWHERE = {"--home", "--json", "--help"}


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(title: str) -> dict[str, str]:
    """What is in the first column of the section's table, and what is said of it."""
    return dict(re.findall(r"^\| `([^`|]+)`[^|]* \| (.*) \|$", section(title), re.MULTILINE))


def quoted(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def usage(name: str, command: click.Command) -> str:
    arguments = [parameter for parameter in command.params if isinstance(parameter, click.Argument)]
    words = [(a.metavar or a.human_readable_name, a.required) for a in arguments]
    return " ".join([name, *(word if required else f"[{word}]" for word, required in words)])


def options(command: click.Command) -> set[str]:
    found = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    return {name for option in found for name in (*option.opts, *option.secondary_opts)}


def test_every_command_has_a_row_with_what_it_takes_and_no_other_has() -> None:
    assert set(rows("Commands")) == {usage(name, command) for name, command in live.commands.items()}


@pytest.mark.parametrize("name", live.commands)
def test_a_commands_row_has_exactly_its_options(name: str) -> None:
    command = live.commands[name]
    described = re.findall(r"`(--?[a-z]+(?:-[a-z]+)*)[ `]", rows("Commands")[usage(name, command)])
    assert set(described) - EVERYWHERE == options(command) - EVERYWHERE - {"-h"} | (
        {"--journal"} if name == "journal" else set()
    )
    assert options(command) >= {"--home", "--json"}


def test_the_settings_of_a_topology_are_all_there_and_no_other() -> None:
    table = rows("The topology file")
    assert {re.split(r"[.\]]", name.strip("["))[0] for name in table} == SETTINGS
    for name, settings in {
        "[nodes.NAME]": OF_NODES,
        "[checkpoints]": IN_SECONDS | IN_NUMBERS,
        "[tls]": set(OF_TLS),
    }.items():
        said = {word for word in quoted(table[name]) if re.fullmatch(r"[a-z_]+", word)}
        assert said == settings, name
    assert {f'"{protocol}"' for protocol in PROTOCOLS} <= quoted(table["protocol"])


def test_what_a_user_imports_is_on_the_page() -> None:
    said = {re.split(r"[(@]", word.lstrip("@"))[0] for word in quoted(section("Python"))}
    assert set(package.__all__) <= said
    own = {name for name in vars(Process) if not name.startswith("_")}
    assert own <= said
    methods = {name for name in said if hasattr(System, name)}
    assert methods >= {"snapshot", "restore", "status", "break_when", "terminated", "kill", "running"}

"""The unit and the container recipe in examples/deploy, checked as far as that goes without systemd and Docker."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from strobe.cli.run import run_command
from strobe.cli.supervise import HOPELESS
from strobe.model.errors import Misuse

ROOT = Path(__file__).parents[1]
UNIT = (ROOT / "examples" / "deploy" / "strobe@.service").read_text()
DOCKERFILE = (ROOT / "examples" / "deploy" / "Dockerfile").read_text()
INSTRUCTIONS = {
    "FROM", "RUN", "COPY", "WORKDIR", "USER", "ENV", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT",
    "CMD",
}  # fmt: skip


def setting(name: str) -> str:
    (value,) = re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)
    return str(value)


def accepts(arguments: list[str]) -> None:
    """`strobe run` takes these: a wrong option would be UsageError."""
    with click.Context(run_command) as context:
        run_command.parse_args(context, list(arguments))


def instructions() -> list[tuple[str, str]]:
    whole = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE))
    lines = [line.strip() for line in whole.splitlines() if line.strip()]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here: apt-get install systemd")
    unit = tmp_path / "strobe@shop.service"
    unit.write_text(UNIT.replace("/opt/strobe/bin/strobe", sys.executable))  # which must exist
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if "strobe@shop.service" in line]
    assert (done.returncode, complaints) == (0, []), done.stderr


def test_the_unit_runs_a_command_that_strobe_takes() -> None:
    program, command, *arguments = shlex.split(setting("ExecStart").replace("%i", "shop"))
    assert (Path(program).name, command) == ("strobe", "run")
    assert "--supervise" in arguments
    accepts(arguments)


def test_the_unit_does_not_start_again_what_is_hopeless() -> None:
    assert setting("RestartPreventExitStatus").split() == [str(Misuse.exit_code), str(HOPELESS)]
    assert (setting("KillSignal"), setting("KillMode")) == ("SIGTERM", "mixed")


def test_the_container_recipe_copies_what_there_is_and_runs_what_strobe_takes() -> None:
    parsed = instructions()
    assert {name for name, _ in parsed} <= INSTRUCTIONS
    assert parsed[0][0] == "FROM"
    for name, rest in parsed:
        if name == "COPY":
            *sources, _ = [word for word in rest.split() if not word.startswith("--")]
            assert all((ROOT / source).exists() for source in sources), rest
        elif name in ("ENTRYPOINT", "CMD"):
            json.loads(rest)  # as a list: signals must reach the process itself
    last = dict(parsed)
    assert json.loads(last["ENTRYPOINT"]) == ["strobe"]
    command, *arguments = json.loads(last["CMD"])
    assert command == "run"
    accepts(arguments)
    assert last["USER"] == "strobe", "not as root"
    assert last["STOPSIGNAL"] == "SIGTERM"


def test_the_recipes_python_is_one_that_strobe_supports() -> None:
    (version,) = re.findall(r"^FROM python:3\.(\d+)-", DOCKERFILE, re.MULTILINE)
    assert int(version) >= 11

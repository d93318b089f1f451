"""What holds for every command: help, versions, exit codes, errors in words and as JSON."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from strobe import __version__
from strobe.cli.main import COMMANDS, cli, main
from strobe.cli.output import Command
from strobe.model.errors import Failed
from tests.cli.conftest import Strobe

STROBE = (sys.executable, "-m", "strobe.cli.main")


def commands(group: click.Command, *path: str) -> list[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(group, click.Group):
        return [(path, group)]
    context = click.Context(group)
    found = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found += commands(command, *path, name)
    return found


ALL = commands(cli)


def test_help_lists_every_command_without_importing_any() -> None:
    script = "import sys; from strobe.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    script += "print([m for m in sys.modules if m.startswith(('strobe.cli.', 'strobe.hosts', 'pyspark'))])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert all(f"  {name} " in done.stdout for name in COMMANDS)
    assert done.stdout.splitlines()[-1] == "['strobe.cli.output', 'strobe.cli.main']"


def test_the_list_of_jobs_imports_nothing_of_how_they_run(tmp_path: Path) -> None:
    script = f"import sys; from strobe.cli.main import main\ntry: main(['list', '--home', {str(tmp_path)!r}])\n"
    script += "except SystemExit: pass\n"
    script += "print([m for m in sys.modules if m.startswith(('strobe.protocol', 'strobe.hosts.spark', 'pyspark'))])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    imported = done.stdout.splitlines()[-1].strip("[]").replace("'", "").split(", ")
    home = ("strobe.hosts.spark", "strobe.hosts.spark.home")
    assert [name for name in imported if name not in home and not name.startswith("strobe.hosts.spark.home.")] == []


SLOW = {  # to import, by themselves or by what they bring along
    "rich", "asyncio", "ssl", "socket", "urllib.request", "http.client", "email", "subprocess", "multiprocessing",
    "concurrent.futures",
    "pyspark", "py4j", "deltalake", "pyarrow", "pandas", "numpy", "duckdb", "boto3", "obstore", "cryptography",
    "strobe.store.s3", "strobe.store.snapshots", "strobe.store.manifest", "strobe.hosts.spark.home.job_home",
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "allowed"),
    [(["--help"], set()), (["list"], {"concurrent.futures"}), (["list", "--json"], {"concurrent.futures"})],
    ids=["help", "list", "list as JSON"],
)
def test_what_people_type_all_day_imports_nothing_slow(words: list[str], allowed: set[str], tmp_path: Path) -> None:
    (tmp_path / "jobs" / "ledger" / "snapshots").mkdir(parents=True)
    words = words if words == ["--help"] else [*words, "--home", str(tmp_path)]
    script = f"import sys; from strobe.cli.main import main\ntry: main({words!r})\nexcept SystemExit: pass\n"
    script += "print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    imported = set(done.stdout.splitlines()[-1].split())
    assert "strobe.cli.main" in imported
    assert not imported & (SLOW - allowed)


def test_the_version_is_the_packages(strobe: Strobe) -> None:
    assert strobe("--version").out == f"strobe {__version__}\n"


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_every_command_takes_json_and_home_and_shows_examples(
    path: tuple[str, ...], command: click.Command, strobe: Strobe
) -> None:
    options = {option for parameter in command.params for option in parameter.opts}
    assert {"--json", "--home"} <= options
    assert isinstance(command, Command)
    assert command.examples
    help = strobe(*path, "--help")
    assert help.code == 0
    assert all(f"$ {line}" in help.out for line, _ in command.examples)


def test_a_call_that_makes_no_sense_is_one_sentence_and_exit_code_2(strobe: Strobe) -> None:
    done = strobe("sim", "run", "bank", "--no-such-option")
    assert done.code == 2
    assert done.out == ""
    assert done.err.splitlines() == ["error: No such option '--no-such-option'.", "next:  See: strobe sim run --help"]


def test_an_unknown_command_is_exit_code_2(strobe: Strobe) -> None:
    done = strobe("simulate")
    assert done.code == 2
    assert done.err.startswith("error: No such command 'simulate'.")


def test_with_json_an_error_is_one_json_value_on_standard_output(strobe: Strobe) -> None:
    done = strobe("sim", "run", "nothing", "--json")
    assert done.code == 2
    assert done.err == ""
    assert done.json["error"]["what"] == "There is no workload called 'nothing'."
    assert done.json["error"]["exit_code"] == 2
    assert strobe("sim", "run", "--json").json["error"]["what"] == "Missing argument 'WORKLOAD'."


def test_an_error_says_what_happened_what_is_untouched_and_what_to_do_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise Failed("It broke.", untouched="The rest is whole.", next="Try again.")

    monkeypatch.setattr(cli, "main", fail)
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 1
    assert capsys.readouterr().err == "error: It broke.\n       The rest is whole.\nnext:  Try again.\n"


def test_an_interrupt_is_exit_code_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", interrupt)
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 130
    assert "Traceback" not in capsys.readouterr().err


def test_an_interrupted_process_says_so_without_a_traceback(tmp_path: Path) -> None:
    """The journal goes into a pipe that nobody empties: when the pipe opens, the process is at work and stays there."""
    pipe = tmp_path / "run.journal"
    os.mkfifo(pipe)
    command = [*STROBE, "sim", "run", "bank", "-n", "2", "--param", "transfers=3000", "--journal", str(pipe)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        with pipe.open("rb"):
            process.send_signal(signal.SIGINT)
            assert process.wait() == 130
        assert process.stderr is not None
        assert process.stderr.read().strip() == "interrupted"


@pytest.mark.parametrize("words", [[], ["--json"]], ids=["words", "JSON"])
def test_a_reader_that_goes_away_is_no_failure_to_report(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*STROBE, "sim", "list", *words], stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert done.stderr == ""
    assert done.returncode == 141


def test_home_comes_from_the_environment_or_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    from strobe.cli.output import Session, common_options

    seen: list[Path] = []

    @click.command()
    @common_options
    def command(session: Session) -> None:
        seen.append(session.home)

    monkeypatch.delenv("STROBE_HOME", raising=False)
    command.main([], standalone_mode=False)
    monkeypatch.setenv("STROBE_HOME", "elsewhere")
    command.main([], standalone_mode=False)
    command.main(["--home", "here"], standalone_mode=False)
    assert seen == [Path(".strobe"), Path("elsewhere"), Path("here")]

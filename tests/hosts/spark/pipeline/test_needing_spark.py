"""Modules that a worker cannot import travel by value; all others are imported there."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from strobe.hosts.spark.pipeline.needing_spark import modules_needing_spark, pickle_by_value

pytestmark = pytest.mark.spark

USE = "from pyspark.sql import functions as F\nfrom pyspark.sql.types import LongType\n"
MODULES = {
    "typed_in_words": '\n@F.udf("long")\ndef twice(n):\n    return double(n)\n\ndef double(n):\n    return 2 * n\n',
    "typed": "\n@F.udf(LongType())\ndef twice(n):\n    return 2 * n\n",
    "column": "BIG = F.col('n') > 7\n",
    "columns": "ALL = {'n': F.col('n')}\n",
    "importing": "from typed_in_words import double\n",
    "behind": "import importing as other\n",
    "apart": "import typed\nTWO = 2\n\ndef twice(n):\n    return TWO * n\n",
    "inside.needing": "from .sub import thing\n",
    "inside.sub": "thing = F.lit(1)\n",
    "inside.plain": "X = 1\n",
}
NEEDING = ["behind", "column", "columns", "importing", "inside.needing", "inside.sub", "typed_in_words"]


@pytest.fixture
def modules(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "__init__.py").touch()
    for name, text in MODULES.items():
        (tmp_path / f"{name.replace('.', '/')}.py").write_text(USE + text)
    before = set(sys.modules)
    for name in MODULES:
        importlib.import_module(name)
    yield tmp_path
    for name in sorted(set(sys.modules) - before):
        if name in cloudpickle.list_registry_pickle_by_value():  # type: ignore[no-untyped-call]
            cloudpickle.unregister_pickle_by_value(sys.modules[name])  # type: ignore[no-untyped-call]
        if name.partition(".")[0] in {*MODULES, "inside"}:
            del sys.modules[name]


def test_a_module_that_asks_spark_while_it_is_imported_is_found_and_who_imports_it(modules: Path) -> None:
    assert [module.__name__ for module in modules_needing_spark([modules])] == NEEDING
    assert modules_needing_spark([modules / "elsewhere"]) == []


def test_only_what_a_worker_cannot_import_is_in_the_pickle(modules: Path) -> None:
    pickle_by_value([modules])
    double, twice = sys.modules["typed_in_words"].double, sys.modules["apart"].twice
    assert _sent(twice) is twice, "by its name"
    assert _sent(double) is not double, "by value"
    assert _sent(double)(4) == 8


def _sent(function: Any) -> Any:
    return cloudpickle.loads(cloudpickle.dumps(function))  # type: ignore[no-untyped-call]

"""A project as a user would write it: a pipeline in a file whose name is not an identifier, modules and a package
beside it, and in it every kind of Python code that Spark runs on its workers.

`write` lays it out, `run` runs it from another directory, `check` says whether its tables are right.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

FILE = "my-pipeline.py"

PIPELINE = '''
"""Every kind of function that Spark runs."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import money.tables.lookup as lookup
import rates
import strobe
from grades import grade
from rates import FromHelper, sum_up
from scores import is_over

pipeline = strobe.Pipeline(
    "kinds",
    checkpoint=strobe.CheckpointConfig(interval=None),
    conf={"spark.sql.execution.pythonUDF.arrow.enabled": False},
)

log = logging.getLogger(__name__)
WORD = re.compile(r"[a-z]+")
N = F.col("n")


class Shape:
    pass


@dataclass(frozen=True)
class Square(Shape):
    side: int

    def area(self) -> int:
        return self.side**2


class Colour(Enum):
    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    a: int
    b: int


def plus_one(function):
    @functools.wraps(function)
    def wrapped(x):
        return function(x) + 1

    return wrapped


def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1)


@plus_one
def decorated(x):
    log.debug("at work")
    shape = Square(x)
    assert isinstance(shape, Shape) and asdict(shape) == {"side": x}
    assert Colour(1) is Colour.RED and Pair(x, 1)._asdict()["a"] == x and WORD.match("abc")
    return shape.area()


@F.udf("long")
def plain(n: int) -> int:
    return decorated(n)


@F.udf(returnType="long", useArrow=True)
def with_arrow(n):
    return factorial(n)


@F.pandas_udf("long")
def pandas(n: pd.Series) -> pd.Series:
    return n.map(decorated)


@F.pandas_udf("double")
def pandas_batches(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for batch in batches:
        yield batch * rates.RATE


@F.arrow_udf("long")
def arrow(n: pa.Array) -> pa.Array:
    return pa.array([decorated(v) for v in n.to_pylist()], pa.int64())


@F.udtf(returnType="twice long")
class Doubled:
    def eval(self, n: int):
        yield (2 * decorated(n),)


def in_pandas(frames):
    for frame in frames:
        frame["mapped"] = frame["n"].map(factorial)
        yield frame


def in_arrow(batches):
    import late  # nobody has imported it in the driver

    for batch in batches:
        values = pa.array([late.negative(v) for v in batch.column("n").to_pylist()], pa.int64())
        yield batch.append_column("late", values)


@F.udf("string")
def where(n):
    return rates.__file__


class Numbers(DataSource):
    @classmethod
    def name(cls):
        return "numbers"

    def schema(self):
        return "n long"

    def streamReader(self, schema):
        return NumbersReader()


@dataclass
class Range(InputPartition):
    first: int
    last: int


class NumbersReader(DataSourceStreamReader):
    def initialOffset(self):
        return {"at": 0}

    def latestOffset(self):
        return {"at": 4}

    def partitions(self, start, end):
        return [Range(start["at"], end["at"])]

    def read(self, partition):
        assert isinstance(partition, Range)
        for n in range(partition.first, partition.last):
            yield (n + 1,)


class Counting(StatefulProcessor):
    def init(self, handle):
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key, rows, timers):
        seen = self.count.get()[0] if self.count.exists() else 0
        for frame in rows:
            seen += len(frame)
        self.count.update((seen,))
        yield pd.DataFrame({"even": [key[0]], "seen": [decorated(seen)]})

    def close(self):
        pass


def with_state(key, frames, state: GroupState):
    total = state.get[0] if state.exists else 0
    for frame in frames:
        total += sum(factorial(n) for n in frame["n"])
    state.update((total,))
    yield pd.DataFrame({"even": [key[0]], "total": [total]})


def by_group(key, frame):
    return pd.DataFrame({"even": [key[0]], "most": [decorated(int(frame["total"].max()))]})


@F.pandas_udf("double")
def mean(v: pd.Series) -> float:
    return float(v.mean() * rates.RATE)


def each_batch(batch, batch_id):
    grouped = batch.groupBy("even").applyInPandas(by_group, "even boolean, most long")
    averages = batch.groupBy("even").agg(mean("total").alias("mean"))
    with open("OUT/batches.txt", "a") as file:
        for row in grouped.join(averages, "even").collect():
            file.write(f"{row['even']} {row['most']} {row['mean']:.1f}\\n")


@pipeline.stage("numbers", trigger={"availableNow": True}, to=strobe.FileSink("OUT/numbers", format="json"))
def numbers(spark):
    spark.dataSource.register(Numbers)
    offset = spark.sparkContext.broadcast({"by": 100})
    calls = spark.sparkContext.accumulator(0)

    @F.udf("long")
    def shifted(n):
        calls.add(1)
        return n + offset.value["by"]

    rows = spark.readStream.format("numbers").load()
    rows = rows.select(
        N,
        plain("n").alias("plain"),
        with_arrow("n").alias("with_arrow"),
        pandas("n").alias("pandas"),
        pandas_batches("n").alias("pandas_batches"),
        arrow("n").alias("arrow"),
        shifted("n").alias("shifted"),
        F.udf(lookup.price, "long")("n").alias("price"),
        is_over("n").alias("over"),
        F.udf(grade)("n").alias("grade"),
        where("n").alias("where"),
    )
    rows = rows.lateralJoin(Doubled(N.outer()))
    rows = rows.mapInPandas(in_pandas, rows.schema.simpleString()[7:-1].replace(":", " ") + ", mapped long")
    return rows.mapInArrow(in_arrow, rows.schema.simpleString()[7:-1].replace(":", " ") + ", late long")


# more
@pipeline.stage("counted", reads="numbers", output_mode="update", to=strobe.FileSink("OUT/counted", format="json"))
def counted(numbers):
    groups = numbers.select((N % 2 == 0).alias("even"), "n").groupBy("even")
    return groups.transformWithStateInPandas(Counting(), "even boolean, seen long", "Update", "None")


# enough
@pipeline.stage("helped", reads="numbers", output_mode="update", to=strobe.FileSink("OUT/helped", format="json"))
def helped(numbers):
    groups = numbers.select((N % 2 == 0).alias("even"), "n").groupBy("even")
    return groups.transformWithState(FromHelper(), "even boolean, total long", "Update", "None")


# more
@pipeline.stage("totals", reads="numbers", output_mode="update", to=strobe.ForeachBatchSink(each_batch))
def totals(numbers):
    groups = numbers.select((N % 2 == 0).alias("even"), "n").groupBy("even")
    return groups.applyInPandasWithState(
        with_state, "even boolean, total long", "total long", "update", GroupStateTimeout.NoTimeout
    )


# enough
if __name__ == "__main__":
    raise SystemExit("it is not run as a script")
'''

RATES = """
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from money.units import SCALE

RATE = 1.5


def sum_up(rows):
    return sum(row["n"] * SCALE for row in rows)


class FromHelper(StatefulProcessor):
    def init(self, handle):
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key, rows, timers):
        total = (self.total.get()[0] if self.total.exists() else 0) + sum_up(rows)
        self.total.update((total,))
        yield Row(even=key[0], total=total)

    def close(self):
        pass
"""

SCORES = """
from pyspark.sql import functions as F

LIMIT = 2


def over(n):
    return n > LIMIT


@F.udf("boolean")
def is_over(n):
    return over(n)
"""

GRADES = """
from scores import over


def grade(n):
    return "high" if over(n) else "low"
"""

LOOKUP = """
import json
from pathlib import Path

from ..units import SCALE

PRICES = json.loads(Path(__file__).with_name("prices.json").read_text())


def price(n):
    return PRICES[str(n)] * SCALE
"""

EXPECTED_NUMBERS = [
    {
        "n": n,
        "plain": n * n + 1,
        "with_arrow": factorial,
        "pandas": n * n + 1,
        "pandas_batches": n * 1.5,
        "arrow": n * n + 1,
        "shifted": n + 100,
        "price": 70 * n,
        "over": n > 2,
        "grade": "high" if n > 2 else "low",
        "twice": 2 * (n * n + 1),
        "mapped": factorial,
        "late": -n,
    }
    for n, factorial in ((1, 1), (2, 2), (3, 6), (4, 24))
]
EXPECTED_COUNTED = [{"even": False, "seen": 5}, {"even": True, "seen": 5}]
EXPECTED_HELPED = [{"even": False, "total": 40}, {"even": True, "total": 60}]
EXPECTED_BATCHES = ["False 50 10.5", "True 677 39.0"]


def write(root: Path, out: Path, *, few: bool = False) -> Path:
    """The project in `root`; its tables go to `out`. Returns the pipeline's file. With `few` it has two stages only."""
    tables = root / "money" / "tables"
    tables.mkdir(parents=True)
    files = {
        FILE: (re.sub(r"# more\n.*?# enough\n", "", PIPELINE, flags=re.S) if few else PIPELINE).replace(
            "OUT", str(out)
        ),
        "rates.py": RATES,
        "scores.py": SCORES,
        "grades.py": GRADES,
        "late.py": "def negative(n):\n    return -n\n",
        "random.py": "raise RuntimeError('Python has a module of this name')\n",
        "money/__init__.py": "",
        "money/units.py": "SCALE = 10\n",
        "money/tables/__init__.py": "",
        "money/tables/lookup.py": LOOKUP,
        "money/tables/prices.json": '{"1": 7, "2": 14, "3": 21, "4": 28}',
    }
    for name, text in files.items():
        (root / name).write_text(dedent(text).lstrip())
    out.mkdir(parents=True, exist_ok=True)
    return root / FILE


def run(root: Path, master: str, *, few: bool = False) -> Path:
    """The project, run in a directory with another module of the same name. Returns where its tables are."""
    file = write(root / "project", root / "out", few=few)
    (root / "elsewhere").mkdir()
    (root / "elsewhere" / "rates.py").write_text("raise RuntimeError('another module of that name')\n")
    done = subprocess.run(
        [sys.executable, "-m", "strobe.cli.main", "run", file, "--master", master],
        cwd=root / "elsewhere",
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return root / "out"


def rows(table: Path, key: str) -> list[dict[str, object]]:
    lines = [line for file in table.rglob("part-*.json") for line in file.read_text().splitlines()]
    return sorted(map(json.loads, lines), key=lambda row: row[key])


def check(out: Path, *, few: bool = False) -> set[object]:
    """Returns where the workers have found the module beside the file."""
    numbers = rows(out / "numbers", "n")
    found = {row.pop("where") for row in numbers}
    assert numbers == EXPECTED_NUMBERS
    assert rows(out / "helped", "even") == EXPECTED_HELPED
    if few:
        return found
    assert rows(out / "counted", "even") == EXPECTED_COUNTED
    # The function appends: a batch that is run again is there twice.
    assert sorted(set((out / "batches.txt").read_text().splitlines())) == EXPECTED_BATCHES
    return found

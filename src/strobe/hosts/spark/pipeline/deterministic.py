"""Random numbers that are the same when a batch is run again.

A batch that is replayed after a crash must give the same rows, or what was seen before and what is seen after differ.
`rand()` and `uuid()` do not; `current_timestamp()` does, because Spark logs the batch's time with its offsets and uses
that time again.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from strobe.model.errors import Misuse

__all__ = ["stable_random"]


def stable_random(*keys: str | Column, seed: int = 0) -> Column:
    """A number in [0, 1) that depends on the row's `keys` and `seed` alone, spread evenly.

    Name columns that tell rows apart: rows with equal keys get equal numbers.
    """
    if not keys:
        raise Misuse("stable_random needs at least one column that tells the rows apart.")
    mixed = F.xxhash64(F.lit(seed), *[F.col(k) if isinstance(k, str) else k for k in keys])
    # The upper 53 bits, as many as a double holds, without the sign.
    return F.shiftrightunsigned(mixed, 11).cast("double") / F.lit(float(1 << 53))

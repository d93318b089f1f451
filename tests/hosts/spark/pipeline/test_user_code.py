"""A pipeline of somebody else's, in a directory of its own, run from another one. On a cluster: `test_cluster`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.spark import user_project

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_every_kind_of_function_runs_with_what_is_beside_the_file(tmp_path: Path) -> None:
    (found,) = user_project.check(user_project.run(tmp_path, "local[2]"))
    assert str(found).endswith("/rates.py")

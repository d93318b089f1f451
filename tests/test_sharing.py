"""What one worker of pytest runs in one go."""

from __future__ import annotations

import pytest

from tests import test_docs
from tests.support.sharing import unit_of


@pytest.mark.parametrize(
    ("nodeid", "unit"),
    [
        ("tests/hosts/sim/test_seeds.py::test_a", "tests/hosts/sim/test_seeds.py"),
        ("tests/hosts/sim/test_seeds.py::test_a[b::c[d]]", "tests/hosts/sim/test_seeds.py"),
        ("tests/spark/test_sinks.py::TestOne::test_a[b]", "tests/spark/test_sinks.py::TestOne"),
        ("src/strobe/model/ids.py::strobe.model.ids.Timeline", "src/strobe/model/ids.py"),
        ("tests/test_docs.py::test_an_exit_code_can_be_foretold", "tests/test_docs.py"),
    ],
)
def test_a_file_stays_together_and_a_class_does(nodeid: str, unit: str) -> None:
    assert unit_of(nodeid) == unit


def test_each_document_is_a_unit() -> None:
    name = f"tests/test_docs.py::{test_docs.test_a_document_does_what_it_says.__name__}"
    assert len({unit_of(f"{name}[{page}]") for page in ("README.md", "docs/how-to/clone.md")}) == 2

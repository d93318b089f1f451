"""Law 8: every check can fail. Each mutant is caught, and the real machine passes the very same runs."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from strobe.hosts.sim.mutants import MUTANTS, Mutant, mutant
from strobe.hosts.sim.protocols import PROTOCOLS
from strobe.hosts.sim.seeds import try_seed
from strobe.model.errors import Misuse
from strobe.protocol.barriers import Barriers
from strobe.protocol.chandy_lamport import ChandyLamport
from strobe.protocol.lai_yang import LaiYang
from tests.protocol.mutant_table import OTHERS, Other, defined, page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "mutants.md"
WITHIN = 1_000  # seeds


@pytest.mark.parametrize(
    ("one", "protocol"),
    [pytest.param(m, p, id=f"{m.name}-{p}") for m in MUTANTS.values() for p in m.protocols],
)
def test_a_mutant_is_caught(one: Mutant, protocol: str) -> None:
    """Where it matters most it is also found out in the way that the table says."""
    for seed in range(WITHIN):
        kinds = {failure.kind for failure in try_seed(seed, protocol, one.machine).failures}
        if kinds if protocol != one.protocols[0] else one.shows in kinds:
            real = try_seed(seed, protocol)
            assert real.failures == (), f"seed {seed}: the real machine fails as well"
            return
    pytest.fail(f"{one.name} broke a rule of {protocol}, and nobody noticed: {one.rule}")


@pytest.mark.parametrize("one", MUTANTS.values(), ids=lambda m: m.name)
def test_a_mutant_is_the_real_machine_but_for_what_it_overrides(one: Mutant) -> None:
    for protocol in one.protocols:
        assert issubclass(one.machine, PROTOCOLS[protocol].machine)  # type: ignore[arg-type]
    own = [name for name in vars(one.machine) if name not in ("__doc__", "__module__")]
    assert own
    assert one.machine.__doc__


@pytest.mark.parametrize("machine", [ChandyLamport, LaiYang, Barriers])
def test_every_rule_method_of_a_machine_is_broken_by_a_mutant(machine: type) -> None:
    overridden = {
        name
        for one in MUTANTS.values()
        if issubclass(one.machine, machine)
        for cls in one.machine.__mro__[: one.machine.__mro__.index(machine)]
        for name in vars(cls)
    }
    rules = {name for name, _ in inspect.getmembers(machine, inspect.isfunction) if name.startswith("_")}
    # Book-keeping: what these do wrong shows in the rules that call them.
    assert rules - overridden <= {"__init__", "_initiate", "_begin", "_check_live"}


def test_no_two_mutants_share_a_name_or_a_rule_within_a_protocol() -> None:
    assert all(name == one.name for name, one in MUTANTS.items())
    for protocol in PROTOCOLS:
        rules = [one.rule for one in MUTANTS.values() if protocol in one.protocols]
        assert len(rules) == len(set(rules)), protocol


def test_an_unknown_mutant_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Misuse, match=r"no mutant called 'nobody'.*records-late"):
        mutant("nobody")


# ── the page ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_page_lists_exactly_the_mutants_that_there_are(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--rewrite"):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page(), "out of step: pytest tests/protocol/test_mutants.py --rewrite"


@pytest.mark.parametrize("other", OTHERS, ids=lambda o: o.title)
def test_the_table_knows_every_mutant_beside_its_test(other: Other) -> None:
    assert defined(other) == set(other.rules)
    for test in other.tests:
        assert callable(getattr(other.module, test))

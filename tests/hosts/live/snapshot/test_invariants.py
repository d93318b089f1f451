"""`[invariants]` of a topology: asked of the snapshots of a running system, noted, and shown."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.live.commandline import EXAMPLES, Terminal, up

TOTAL = """
select sum(cents) as total from (
  select balance as cents from state.athens union all select balance from state.berlin
  union all select balance from state.cairo
  union all select cast(message ->> 'amount' as bigint) from in_flight.messages)
having total <> 4000
"""


def bank(tmp_path: Path, invariants: str) -> Path:
    """Three branches that send each other money, in a directory of their own."""
    where = tmp_path / "elsewhere"
    where.mkdir(exist_ok=True)
    shutil.copy(EXAMPLES / "bank.py", where)
    (where / "bank.toml").write_text((EXAMPLES / "bank.toml").read_text() + f"\n[invariants]\n{invariants}\n")
    return where / "bank.toml"


def test_verdicts_are_in_the_status_noted_and_outlive_the_system(tmp_path: Path) -> None:
    strobe = Terminal(tmp_path)
    invariants = f'"no money is made" = """{TOTAL}"""\nrich = "select balance from state.berlin where balance > 0"'
    file = bank(tmp_path, invariants + '\nbroken = { sql = "select nothing from state.cairo", every = 2 }')
    with up(strobe, str(file), "--interval", "0.2"):
        while True:
            found = {i["name"]: i for i in strobe.ask("live", "status", "bank")["invariants"]}
            if all(each["outcome"] for each in found.values()) and found["rich"]["violations"] > 1:
                break
        assert {name: each["outcome"] for name, each in found.items()} == {
            "no money is made": "holds", "rich": "violated", "broken": "failed",
        }  # fmt: skip
        shown = strobe("live", "status", "bank").out
        assert "invariant 'no money is made' holds in snapshot" in shown
        assert "invariant 'rich' is violated in snapshot" in shown
    noted = strobe("checks", "bank", "--json")
    assert (noted.code, {v["invariant"]: v["outcome"] for v in noted.json}["no money is made"]) == (1, "holds")
    every = [v["invariant"] for v in strobe("checks", "bank", "--all", "--json").json]
    assert every.count("broken") < every.count("rich")
    log = (strobe.home / "jobs" / "bank" / "logs" / "driver.log").read_text()
    assert log.count("invariant 'rich' is violated") == 1


def test_an_invariant_that_cannot_be_meant_does_not_start(tmp_path: Path) -> None:
    strobe = Terminal(tmp_path)
    for invariant, why in (
        ('x = "select * from state.atens"', "state.atens, which this system does not have"),
        ('x = "select * from in_flight.athens"', "in_flight.athens, which this system does not have"),
        ('x = "selec 1"', "is not SQL"),
        ('x = "delete from state.athens"', "is not one select"),
        ("x = 5", "invariant 'x' is not legal"),
        ('x = { sql = "select 1", every = 0 }', "every=0"),
        ('x = ""', "has an empty query"),
    ):
        refused = strobe("live", "up", str(bank(tmp_path, invariant)))
        assert (refused.code, why in refused.err, "Traceback" in refused.err) == (2, True, False), refused.err
    assert not (strobe.home / "jobs" / "bank" / "runtime.json").exists()

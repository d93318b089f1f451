"""`strobe demo`: see Strobe work in a minute or two, on this machine, with nothing to set up."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from strobe.cli.output import Command, Session, Whole, common_options
from strobe.hosts.spark.job.demo import INVARIANT, QUERY, Comparison, compare, write_transfers
from strobe.look.cut import open_snapshot
from strobe.model.errors import Failed, Misuse
from strobe.model.invariants import Outcome, Verdict
from strobe.store.consistency import check_manifest
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JobLayout
from strobe.store.snapshots import SnapshotStore
from strobe.store.verdicts import read_verdicts

__all__ = ["demo_command"]

ACCOUNTS = 500
PIPELINE = """\
from pathlib import Path

from strobe.hosts.spark.job.demo import demo_pipeline

pipeline = demo_pipeline(Path(__file__).parent / "in")
"""


@click.command("demo", cls=Command, examples=(("strobe demo", "the whole tour, in ./strobe-demo"),))
@click.option("--dir", "directory", metavar="DIR", default="strobe-demo", show_default=True,
              help="Where to put it; a demo that is there is replaced.")  # fmt: skip
@click.option("--files", type=Whole(4), default=24, show_default=True, help="Files of transfers to process.")
@click.option("--rows", type=Whole(10), default=20_000, show_default=True, help="Transfers per file.")
@click.option("--seed", type=Whole(), default=7, show_default=True, help="The same seed gives the same transfers.")
@common_options
def demo_command(directory: str, files: int, rows: int, seed: int, session: Session) -> int:
    """A ledger that is killed in the middle of a checkpoint, resumes, and is checked by DuckDB.

    Five streaming queries, joined by Delta tables, checkpointed together every second. The driver dies by SIGKILL while
    a checkpoint is being written; the same command resumes it; then every row of every final table is compared with an
    independent computation over the source files. Meanwhile an invariant is asked of the checkpoints: no money is made.
    """
    root = Path(directory).absolute()
    _prepare(root)
    began = time.monotonic()
    say: Callable[..., None] = session.say if not session.json else lambda *parts: None
    transfers = write_transfers(root / "in", files=files, rows=rows, accounts=ACCOUNTS, seed=seed)
    (root / "pipeline.py").write_text(PIPELINE)
    say(("1 ", "bold"), f"{transfers:,} transfers in {files} Parquet files, {ACCOUNTS} accounts, seed {seed}")

    say(("2 ", "bold"), "strobe run pipeline.py: transfers → postings → balances; transfers → suspects → flagged")
    first = _run(root, say, STROBE_CRASH_AT="snapshot.part-durable:7")
    if first.code != -signal.SIGKILL:
        raise Failed(
            f"The first run should have been killed in the middle of a checkpoint, but ended with {first.code}: "
            f"{first.last}",
            next="Try more --files, so that it runs longer.",
        )
    kept = _verify(root)
    say(("3 ", "bold"), "SIGKILL in the middle of a checkpoint. ", f"Complete ones, all sound: {kept}")

    say(("4 ", "bold"), "the same command again …")
    second = _run(root, say)
    if second.code != 0:
        raise Failed(f"The second run failed: {second.last}", next=f"Its logs: {root}/.strobe/jobs/demo/logs")
    _verify(root)
    # Every cut was checked before its manifest was written; of those that are kept, every byte was read again.
    verified = first.completed + second.completed
    tables = compare(root)
    lost, duplicated = sum(t.lost for t in tables), sum(t.duplicated for t in tables)
    verdicts = read_verdicts(root / ".strobe", "demo")
    violated = [v for v in verdicts if v.outcome is Outcome.VIOLATED]
    with open_snapshot("demo", root / ".strobe") as cut:
        (last,) = cut.sql(QUERY).to_pylist()
    seconds = time.monotonic() - began
    if session.json:
        by_table = {t.table: {"rows": t.rows, "lost": t.lost, "duplicated": t.duplicated} for t in tables}
        session.answer(
            {
                "transfers": transfers,
                "lost": lost,
                "duplicated": duplicated,
                "checkpoints_verified": verified,
                "seconds": round(seconds, 1),
                "directory": str(root),
                "tables": by_table,
                "invariant": {"name": INVARIANT, "asked": len(verdicts), "violated": len(violated)},
                "last_cut": {name: int(value) for name, value in last.items()},
            }
        )
    else:
        _report(session, root, tables, lost, duplicated, verified, seconds)
        _look(session, root, verdicts, last)
    return 0 if lost == duplicated == len(violated) == 0 else 1


def _report(
    session: Session, root: Path, tables: list[Comparison], lost: int, duplicated: int, verified: int, seconds: float
) -> None:
    session.say(("5 ", "bold"), "row by row against DuckDB, over the source files:")
    for t in tables:
        good = t.lost == t.duplicated == 0
        mark = ("  ✓ ", "green") if good else ("  ✗ ", "red")
        session.say(mark, f"{t.table:<10} {t.rows:>9,} rows   lost {t.lost}   duplicated {t.duplicated}")
    session.say("")
    session.say(
        (f"lost {lost}, duplicated {duplicated}, checkpoints verified {verified}", "bold"), f"   ({seconds:.0f} s)"
    )


def _look(session: Session, root: Path, verdicts: Sequence[Verdict], last: Mapping[str, int]) -> None:
    home = os.path.relpath(root / ".strobe")
    session.say("")
    session.say(("6 ", "bold"), f"the invariant {INVARIANT!r}, asked of checkpoints while the job ran:")
    for outcome in Outcome:
        found = [str(v.snapshot) for v in verdicts if v.outcome is outcome]
        if found:
            good = outcome in (Outcome.HOLDS, Outcome.SKIPPED)
            session.say(
                ("  ✓ " if good else "  ✗ ", "green" if good else "red"), f"{outcome.value} in {', '.join(found)}"
            )
    session.say(("7 ", "bold"), f'strobe sql demo "{QUERY}" --home {home}')
    session.say(f"    {', '.join(f'{name} {value:,}' for name, value in last.items())}")
    session.say("")
    session.say("Where to look next:")
    session.say(f"  strobe sql demo --home {home}         ask the last checkpoint yourself; .tables says what there is")
    session.say(f"  strobe explain demo --home {home}     where its time went")
    session.say(f"  strobe inspect demo --home {home}     what the last checkpoint holds")
    session.say(f"  strobe verify demo --home {home}      every byte of it, and its cut")
    session.say("  strobe run examples/ledger.py               the same, endless: kill it, run it again")


def _prepare(root: Path) -> None:
    if root.exists():
        if not (root / "pipeline.py").is_file() and any(root.iterdir()):
            raise Misuse(
                f"{root} exists already, and is not a demo of Strobe's.",
                untouched="It was left alone.",
                next="Name another directory: strobe demo --dir DIR",
            )
        shutil.rmtree(root)
    root.mkdir(parents=True)


@dataclass(frozen=True)
class _Outcome:
    code: int
    completed: int
    last: str


def _run(root: Path, say: Callable[..., None], **env: str) -> _Outcome:
    """Run `strobe run`, and show its output line by line."""
    completed, last = 0, ""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "strobe.cli.main", "run", "pipeline.py", "--home", ".strobe"],
        cwd=root,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last = line.strip() or last
            completed += line.startswith("checkpoint") and " complete in " in line
            say((f"    {line.rstrip()}", "dim"))
    return _Outcome(process.returncode, completed, last)


def _store(root: Path) -> SnapshotStore:
    return SnapshotStore(FilesystemStore(root / ".strobe"), JobLayout("demo"), "demo")


def _verify(root: Path) -> list[int]:
    """The complete checkpoints, every byte and every cut checked; Failed if one is not sound."""
    store = _store(root)
    for snapshot in store.list():
        faults = [str(p) for p in store.verify(snapshot) if p.harmful]
        faults += [v.sentence for v in check_manifest(store.load(snapshot))]
        if faults:
            raise Failed(f"Checkpoint {snapshot} is not sound: {' '.join(faults)}")
    return list(store.list())

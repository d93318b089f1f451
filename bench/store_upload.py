"""What it costs to store a snapshot: many small files as a checkpoint has them, and a large state against a plain copy.

    python bench/store_upload.py [--quick] [--files 200] [--size 8000] [--large 256] [--rounds 5] [--dir DIR]

All ways are measured in turn, round after round, on the same disk; the median of the rounds is printed. It is wall
time, because most of it is waiting for the disk; `cpu` is what the process itself used.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from strobe.model.graph import Graph
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline
from strobe.model.kind import Kind
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JobLayout
from strobe.store.manifest import Manifest, NodeRecord
from strobe.store.snapshots import SnapshotStore, Upload

NODE = NodeId("stage")
SECONDS = "2031-05-17T09:30:00Z"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--files", type=int, default=200)
    arguments.add_argument("--size", type=int, default=8000, help="bytes of a small file")
    arguments.add_argument("--large", type=int, default=256, help="megabytes of the large file")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--dir", type=Path, help="measure the disk that holds this directory")
    arguments.add_argument("--quick", action="store_true", help="two rounds of little")
    args = arguments.parse_args()
    if args.quick:
        args.files, args.large, args.rounds = 20, 8, 2
    with tempfile.TemporaryDirectory(dir=args.dir) as directory:
        Bench(Path(directory), args.files, args.size, args.large << 20).run(args.rounds)
    return 0


class Bench:
    def __init__(self, directory: Path, files: int, size: int, large: int) -> None:
        self.directory = directory
        self.files, self.size, self.large = files, size, large
        self.store = SnapshotStore(FilesystemStore(directory / "home"), JobLayout("bench"), "bench")
        self.next = 1
        self.took: dict[str, list[tuple[float, float]]] = {}

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            small = self.make_small()
            half = len(small) // 2
            self.measure("small, one by one", lambda s=small, h=half: self.one_by_one(dict(list(s.items())[:h])))  # type: ignore[misc]
            self.measure("small, together", lambda s=small, h=half: self.snapshot(dict(list(s.items())[h:])))  # type: ignore[misc]
            self.measure("small, all known", lambda s=small: self.snapshot(s))  # type: ignore[misc]
            large = self.directory / f"large-{self.next}"
            large.write_bytes(os.urandom(self.large))
            os.sync()
            self.measure("large, plain copy", lambda f=large: self.copy(f))  # type: ignore[misc]
            self.measure("large, stored", lambda f=large: self.snapshot({"large": f}))  # type: ignore[misc]
            last = SnapshotId(self.next - 1)
            self.measure("large, verified", lambda n=last: self.verify(n))  # type: ignore[misc]
            large.unlink()
            self.store.retire(1)
        self.report()

    def make_small(self) -> dict[str, Path]:
        directory = self.directory / f"small-{self.next}"
        directory.mkdir()
        made = {}
        for i in range(2 * self.files):
            made[str(i)] = directory / str(i)
            made[str(i)].write_bytes(os.urandom(self.size))
        os.sync()
        return made

    def measure(self, what: str, work: Callable[[], object]) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        self.took.setdefault(what, []).append((time.perf_counter() - wall, time.process_time() - cpu))

    def one_by_one(self, files: dict[str, Path]) -> None:
        with self.store.begin(SnapshotId(self.next)) as session:
            refs = {name: session.put_blob(path).ref for name, path in files.items()}
            session.complete(self.manifest(Upload(refs, 0, 0)))

    def snapshot(self, files: dict[str, Path]) -> None:
        with self.store.begin(SnapshotId(self.next)) as session:
            session.complete(self.manifest(session.put_files(files)))

    def manifest(self, upload: Upload) -> Manifest:
        made = Manifest(
            SnapshotId(self.next), Kind.CHECKPOINT, "bench", "spark", Timeline(1), Incarnation(1), "aligned", SECONDS,
            SECONDS, Graph((NODE,)), {NODE: NodeRecord(files=upload.files)},
        )  # fmt: skip
        self.next += 1
        return made

    def copy(self, source: Path) -> None:
        target = self.directory / "copy"
        shutil.copyfile(source, target)
        with target.open("rb") as file:
            os.fsync(file.fileno())
        target.unlink()

    def verify(self, snapshot: SnapshotId) -> None:
        if self.store.verify(snapshot):
            raise SystemExit("the snapshot does not verify")

    def report(self) -> None:
        middle = {what: statistics.median(wall for wall, _ in took) for what, took in self.took.items()}
        for what, took in self.took.items():
            amount = self.large if what.startswith("large") else 0
            rate = f"{amount / middle[what] / 1e6:8,.0f} MB/s" if amount else f"{self.files:6} files"
            cpu = statistics.median(cpu for _, cpu in took)
            print(f"{what:20} {middle[what] * 1000:9.1f} ms  cpu {cpu * 1000:8.1f} ms  {rate}")
        print(f"together against one by one  {middle['small, one by one'] / middle['small, together']:5.2f}×")
        print(f"stored against plain copy    {middle['large, plain copy'] / middle['large, stored']:5.2f}×")


if __name__ == "__main__":
    sys.exit(main())

"""All crash points, a few jobs to a process:

python -m tests.zombies [--bucket] [--each N] [--patience SECONDS] [POINT …]

Points of one process that did not come to a verdict (one was never reached, say) do not keep the others from theirs.
"""

from __future__ import annotations

import argparse
import functools
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from strobe.hosts.spark.home import job_home
from strobe.hosts.spark.jvm.session import POLLING_DELAY, spark_session, stop_session
from tests.services import Server
from tests.support import waiting
from tests.support.s3_server import CREDENTIALS, make_bucket
from tests.zombies import harness
from tests.zombies.plays import LEFT_OUT, NOT_IN_A_BUCKET, PLAYS


@contextmanager
def bucket(where: Path) -> Iterator[str]:
    with Server("s3", where) as server:
        os.environ.update({**CREDENTIALS, "AWS_ENDPOINT_URL": server.address})
        make_bucket(server.address, "zombies")
        yield "s3://zombies"


def _tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zombies", description=__doc__)
    parser.add_argument("points", nargs="*", metavar="POINT", help="those crash points; without any: all of them")
    parser.add_argument("--bucket", action="store_true", help="checkpoints in a bucket, not in a directory")
    parser.add_argument("--each", type=int, default=8, metavar="N", help="jobs in a process (8)")
    parser.add_argument(
        "--patience", type=float, default=waiting.PATIENCE, metavar="SECONDS",
        help="for each step; more where other work has the processors (300)",
    )  # fmt: skip
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave everything in this directory")
    args = parser.parse_args()
    left_out = {**LEFT_OUT, **NOT_IN_A_BUCKET} if args.bucket else LEFT_OUT
    points = args.points or [point for point in PLAYS if point not in left_out]
    for point in points:
        if point in left_out or point not in PLAYS:
            parser.error(f"{point}: {left_out.get(point, 'there is no such crash point')}")
    job_home.HEARTBEAT = 0.05  # how long a look at a silent driver takes
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # in order: nobody else continues or ends what is stopped
    harness.PATIENCE = waiting.PATIENCE = args.patience
    os.environ[waiting.VARIABLE] = str(args.patience)
    wrong: dict[str, str] = {}
    unknown: dict[str, str] = {}
    with ExitStack() as stack:
        where = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="strobe-zombies-")))
        url = stack.enter_context(bucket(where)) if args.bucket else ""
        session = functools.cache(lambda: spark_session("successors", "local[2]", extra={POLLING_DELAY: "20ms"}))
        stack.callback(lambda: stop_session(session()))
        for number in range(0, len(points), args.each):
            few = points[number : number + args.each]
            began = time.monotonic()
            stores = {p: f"{url}/{p.replace('.', '-')}" for p in few} if url else {}
            try:
                wrong |= harness.haunt(few, where / str(number), session, stores, _tell)
            except AssertionError as error:
                reason = str(error).partition("\n")[0] or "".join(traceback.format_exception(error))
                _tell(f"NO VERDICT: {reason}")
                unknown |= dict.fromkeys(few, reason)
                continue
            print(f"{len(few)} points in {time.monotonic() - began:.0f} s: {', '.join(few)}", flush=True)
    for point, why in left_out.items():
        print(f"left out: {point} ({why})")
    for point, harm in wrong.items():
        print(f"WRONG {point}:\n{harm}")
    for point, reason in unknown.items():
        print(f"no verdict: {point} ({reason})")
    print(f"{len(points)} points, {len(points) - len(unknown)} with a verdict, {len(wrong)} wrong")
    return 1 if wrong or unknown else 0


if __name__ == "__main__":
    sys.exit(main())

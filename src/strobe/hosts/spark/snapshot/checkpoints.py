"""The store of a job's checkpoints, as its driver writes to it: settled, taken over, and swept."""

from __future__ import annotations

import logging

from strobe.hosts.spark import crash_points
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.pipeline.config import CheckpointConfig
from strobe.hosts.spark.snapshot.targets import fence_target
from strobe.model.errors import StrobeError
from strobe.store.fencing import take_over
from strobe.store.places import settle
from strobe.store.signing import signer
from strobe.store.small_files import read_object
from strobe.store.snapshots import SnapshotStore

__all__ = ["open_checkpoints"]

_log = logging.getLogger("strobe.checkpoints")


def open_checkpoints(home: JobHome, config: CheckpointConfig) -> SnapshotStore:
    """The checkpoints' store, for the driver that has claimed `home`; no older driver can write there."""
    _shut_savepoint(home)
    record, on_point = home.record, crash_points.point
    sign = None if config.sign_with is None else signer(config.sign_with)
    settled = settle(home.home, home.job, config.store, on_point=on_point, write=home.write)
    objects, layout = take_over(
        settled, home.job, incarnation=record.incarnation, generation=record.generation, on_point=on_point
    )
    store = SnapshotStore(objects, layout, home.job, guard=home.check_owner, on_point=on_point, sign=sign)
    store.sweep()
    return store


def _shut_savepoint(home: JobHome) -> None:
    """An earlier driver that died, or was given up, while it wrote a savepoint must not complete it any more."""
    note = home.path(home.layout.savepoint_under_way)
    try:
        place = read_object(note)["place"]
        fence_target(str(place))
    except FileNotFoundError:
        return
    except (StrobeError, OSError, ValueError, LookupError, TypeError) as error:
        # It is tried again at the next start. A savepoint that comes late is sound, but its place may be named again.
        _log.warning("Job %s: the savepoint that its last driver was writing cannot be shut: %s", home.job, error)
        return
    home.discard(note)

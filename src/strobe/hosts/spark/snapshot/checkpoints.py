"""The store of a job's checkpoints, as its driver writes to it: settled, taken over, and swept."""

from __future__ import annotations

from strobe.hosts.spark import crash_points
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.pipeline.config import CheckpointConfig
from strobe.store.fencing import take_over
from strobe.store.places import settle
from strobe.store.signing import signer
from strobe.store.snapshots import SnapshotStore

__all__ = ["open_checkpoints"]


def open_checkpoints(home: JobHome, config: CheckpointConfig) -> SnapshotStore:
    """For the driver that has claimed `home`; no older one writes there any more."""
    memory, on_point = home.memory, crash_points.point
    sign = None if config.sign_with is None else signer(config.sign_with)
    settled = settle(home.home, home.job, config.store, on_point=on_point)
    objects, layout = take_over(
        settled, home.job, incarnation=memory.incarnation, generation=memory.generation, on_point=on_point
    )
    store = SnapshotStore(objects, layout, home.job, guard=home.check_owner, on_point=on_point, sign=sign)
    store.sweep()
    return store

"""Two-phase commit of sinks that deliver on snapshot, in step with the snapshots."""

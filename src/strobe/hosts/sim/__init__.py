"""The simulator: any system, any schedule, from a seed.

In the order in which a run uses them: `runner` (one call, from a configuration to a result), `workloads` (what runs and
what must be true), `topology` (who can send to whom), `protocols` (the snapshot machines by name), `faults` (what goes
wrong, planned from the seed), `scheduler` (a virtual clock decides what happens next, by `dice`), `world` over `host`
(the system as one value; effects are performed here) with its `sites`, `network` and the `parts` of a snapshot,
and `recovery` (crashes). `system`, `explore` and `judge` walk through all schedules of a small world instead of one.
"""

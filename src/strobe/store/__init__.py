"""Where snapshots live.

In the order in which a newcomer may read them: `layout` (all paths), `base` (what a store of bytes promises) with
`filesystem` and `memory`, `manifest` (what a snapshot says) with `codec` and `merkle`, `snapshots` (sessions,
completion, retention, verification).
"""

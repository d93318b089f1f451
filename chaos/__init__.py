"""A ledger on real systems, under faults: `make chaos`. What it promises is in docs/how-to/chaos.md."""

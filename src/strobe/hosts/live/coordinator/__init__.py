"""The coordinator: when snapshots start and end, which one is restored, and what must be remembered."""

"""The log of a Delta table as a channel: entries in order, barriers among them, one writer, many readers."""

"""Delta tables as sinks: append, upsert by key, on batch or on snapshot."""

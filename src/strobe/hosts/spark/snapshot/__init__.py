"""From a trigger to a manifest: the coordinator, the stages' parts, uploads, savepoints."""

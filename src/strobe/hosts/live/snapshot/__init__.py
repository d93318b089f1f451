"""A snapshot of a live system: from parts to a manifest and back, read and checked."""

"""From a snapshot, or from what is there, to stages that can start."""

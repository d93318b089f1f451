"""Drivers that are stopped, given up and continued, at every crash point, in real processes."""

"""Sinks and sources. `base` is the contract of a sink; each system has a package of its own."""

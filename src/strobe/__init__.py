"""Strobe takes consistent pictures of systems that never stop moving, and brings them back to life."""

__version__ = "0.1.0"

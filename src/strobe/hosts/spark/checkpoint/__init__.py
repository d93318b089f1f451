"""Spark's own checkpoint of one query. Nothing outside of this package knows how Spark lays it out."""

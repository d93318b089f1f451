"""Journals too large for one process, as Parquet, and what Spark says of them."""

"""Directories of Parquet, JSON, CSV or text files as sinks."""

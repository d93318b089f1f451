"""Postgres: a sink with prepared transactions, and a source."""

"""Kafka: a transactional sink, and a source."""

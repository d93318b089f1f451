"""A job: all parts together, and what people ask of it."""

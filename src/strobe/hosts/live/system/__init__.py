"""All of it together: a system from its start to its end, and what other terminals ask of it."""

"""Java, Spark's jars and sessions, the ports that they open."""

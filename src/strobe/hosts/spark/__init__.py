"""Pipelines on Spark: a stage is one Structured Streaming query, a channel the log of a Delta table.

The packages stand on each other in this order, lowest first; nothing imports upwards:

    crash_points  the points at which tests kill everything above
    jvm           Java, Spark's jars and sessions, the ports that they open
    home          where a job lives: its directory, its lease, its record, where it has moved
    plans         what a query's plan says: its operators, what their state means
    checkpoint    Spark's own checkpoint of one query: its files, logs, offsets
    channel       the log of a Delta table as a channel: write, read, how far a reader may go
    connectors    sinks and sources
    pipeline      what a user declares, how the file is loaded, how its code reaches the workers
    snapshot      the coordinator, manifests, uploads, savepoints
    stage         one query and its agent
    commit        two-phase commit of sinks that deliver on snapshot
    restore       from a snapshot, or from what is there, to stages that can start
    job           all of it together, and what people ask of it
"""

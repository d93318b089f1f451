"""Pipelines as other people write them, and a driver that runs each of them in every way that a job can go.

A file in `entries/` is an ordinary pipeline file. Beside its stages it says what comes in, and when:

    SOURCES  the sources that it reads, and the format of each: text, json, csv, parquet, delta
    STEPS    what comes in, in order: (source, rows); a step begins when everything before it is processed
    COUNTS   optional, by stage: which rows of its sink are compared, for those that a clock decides on
    ENDLESS  optional, by stage: how many rows its sink must have before the next step; for stages that never rest
    FIXED    optional: the stages whose state Spark cannot repartition

`entries` loads it, `feeding` writes its input, `plain` runs its queries as plain Spark, `jobs` as a job: undisturbed,
killed and resumed, restored from a savepoint with another number of partitions. Whatever is done to the job, its tables
must be those of plain Spark.
"""

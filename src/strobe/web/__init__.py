"""The page: one process that shows all jobs and live systems of a home, whether they run or not.

It reads what is durable and asks what runs, over the control API of each job. It never holds a job, and loads no Spark:
what needs Spark or Delta (a dry run, a look at tables) is done by the `strobe` command in a process of its own.

In the order in which they are used: `serving` binds the port and runs the server; `application` has the routes;
`security` decides who may ask; `operations` is the registry of `/api/v1`, described by `description`; `home_reader`,
`snapshot_reader` and `system_reader` read, `statuses` asks running jobs, `commands` performs what people order;
`drawing` lays out graphs; `events` tells open pages what has changed. `views` are the records of the API's answers.
"""

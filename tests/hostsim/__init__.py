"""The Spark host in a simulator: real agents, coordinator, commits, home and store; time, threads, disk and bucket are
played. `python -m tests.hostsim --runs 1000 --seed 7`."""

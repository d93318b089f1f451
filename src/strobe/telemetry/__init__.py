"""What others see of what runs: metrics for Prometheus, traces by OpenTelemetry, messages about what went wrong.

Everything here looks from outside, at the status of a job or system and at what its observer tells. Nothing that runs
waits for it, and nothing fails because of it.
"""

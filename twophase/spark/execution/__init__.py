"""Execution on Spark: partitions on the executors, jobs, their events and their cancellation."""

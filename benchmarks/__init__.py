"""Measurements of the algorithms: `python3 -m benchmarks quick` from the root of the repository."""

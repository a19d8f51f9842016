"""Measurements of the algorithms: `python3 -m benchmarks gae` from the root of the repository."""

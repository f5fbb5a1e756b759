"""Benchmarks of coordinate-eval. `python -m benchmarks` runs them."""

"""What this program is measured by: `python -m benchmarks`."""

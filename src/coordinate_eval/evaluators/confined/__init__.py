"""Scoring in a process of its own that sees what the model wrote, and little else."""

"""Slurm through its commands: one module runs them, the others build and parse text."""

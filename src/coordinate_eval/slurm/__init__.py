"""Slurm through its commands. `client` runs them; other modules build and parse text."""

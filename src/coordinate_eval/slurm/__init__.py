"""Slurm through its commands: `client` runs them, `scripts` writes jobs, `answers` has parsers."""

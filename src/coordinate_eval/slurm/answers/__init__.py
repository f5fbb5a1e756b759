"""Answers of Slurm's commands, as values. No module here runs a command."""

"""What Slurm's commands answer, as values. No module here runs a command."""

"""The protocol of a cluster, and what runs jobs where there is no Slurm."""

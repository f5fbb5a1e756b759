"""Checks of what runs need: on a machine, of the cluster, and by jobs on its nodes."""

"""Is all well here? Checks of a machine, of the cluster, and of what jobs find on its nodes."""

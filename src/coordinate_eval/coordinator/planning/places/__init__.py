"""Places for trials: which nodes, how many of them, and how many GPUs a trial has."""

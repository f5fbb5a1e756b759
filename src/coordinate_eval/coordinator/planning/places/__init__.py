"""Where trials run: which nodes, how many of them, and how many GPUs a trial has."""

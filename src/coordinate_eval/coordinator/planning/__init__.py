"""From inputs, prior figures and free nodes to a plan: which trial runs which shards."""

"""Compare the scores of two checkpoints, item by item."""

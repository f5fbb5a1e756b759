"""What the jobs of one node share: weights in memory, and what engines compile."""

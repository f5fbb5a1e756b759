"""Shared files of one node's jobs: weights in memory, and what engines compile."""

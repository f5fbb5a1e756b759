"""Formats of checkpoints: which files have the weights, and the tensors in them."""

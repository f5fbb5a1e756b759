"""Checkpoints that are made of others: adapters and their bases, and averages."""

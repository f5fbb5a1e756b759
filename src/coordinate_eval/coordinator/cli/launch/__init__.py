"""Commands that start, continue or end runs."""

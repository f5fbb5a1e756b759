"""A Ray cluster of several machines, which others have started."""

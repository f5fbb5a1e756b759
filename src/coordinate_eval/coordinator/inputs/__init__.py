"""The user's inputs: checkpoint, suite, settings and cluster file, checked as they are read."""

"""Observe what goes wrong with jobs and nodes, judge it once, and say what follows."""

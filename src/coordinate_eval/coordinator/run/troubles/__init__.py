"""Troubles with jobs and nodes, and what follows from them."""

"""The run directory: its paths, its records, and the protocol for claiming work."""

"""Datasets whose answers another model rates: the judge."""

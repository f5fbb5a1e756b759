"""Suites and rubrics: read from YAML, with the line of each error."""

"""Tests of coordinate-eval; a package so that they can share `tests.tiny`."""

"""Predictions of what a dataset takes, from a roofline and from finished runs."""

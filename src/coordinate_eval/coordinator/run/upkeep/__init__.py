"""Runs that have ended: made small, or removed."""

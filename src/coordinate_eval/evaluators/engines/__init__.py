"""Engines: one module each, behind the protocol of `base`."""

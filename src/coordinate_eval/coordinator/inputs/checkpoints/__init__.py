"""Checkpoints: found, described and copied without trusting what they hold."""

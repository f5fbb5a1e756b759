"""Scores every checkpoint of a pretraining run on leftover GPUs."""

__version__ = "0.1.0"

"""Score every checkpoint of a pretraining run on the free GPUs of a cluster."""

__version__ = "0.1.0"

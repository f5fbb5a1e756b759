"""The sandbox in which programs written by a model run."""

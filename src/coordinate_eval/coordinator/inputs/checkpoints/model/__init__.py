"""The model that a config describes, and whether the tensors are those of the config."""

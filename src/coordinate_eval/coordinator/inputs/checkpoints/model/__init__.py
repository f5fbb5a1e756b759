"""What the config of a model says, and whether the tensors are those of the config."""

"""Keep what runs have measured, and read it as series over the checkpoints of a training."""

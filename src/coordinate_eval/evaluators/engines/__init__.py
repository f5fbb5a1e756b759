"""The engines that run a model: one module each, with the protocol of `base`."""

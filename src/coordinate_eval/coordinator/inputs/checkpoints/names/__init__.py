"""Names of tensors: from those of a trainer to those of Hugging Face."""

"""The prompts of a suite as tokenized requests: built in processes of their own, and cached."""

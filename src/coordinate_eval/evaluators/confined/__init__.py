"""Processes of the harness: one that builds prompts, and some that see what the model wrote."""

"""Run programs that a model wrote, confined."""

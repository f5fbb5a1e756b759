"""The evaluator over lm-evaluation-harness: its tasks, prompts and metrics."""

"""The evaluator over lm-evaluation-harness."""

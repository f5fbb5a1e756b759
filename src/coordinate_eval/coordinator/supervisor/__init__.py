"""The process that watches one run: gather facts, decide, act."""

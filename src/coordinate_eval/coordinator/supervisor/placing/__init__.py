"""Where a run's jobs go: its plan, its later rounds, and the user's other runs."""

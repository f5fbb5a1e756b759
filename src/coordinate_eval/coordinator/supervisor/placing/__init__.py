"""Places for a run's jobs: its plan, its later rounds, and the user's other runs."""

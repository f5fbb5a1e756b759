"""Reading a run: its state, its failures, its scores."""

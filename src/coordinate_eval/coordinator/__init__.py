"""Planning, the run directory, staging, trials, metrics and their supervision."""

"""How long a dataset takes before it has ever been run."""

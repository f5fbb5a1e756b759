"""What is tried against this program, each with what must come of it."""

"""What goes wrong with jobs and nodes, and what follows from it."""

"""What goes wrong with jobs and nodes: observe, judge once, and what follows."""

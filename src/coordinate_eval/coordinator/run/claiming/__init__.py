"""The division of work: spans, claims on them, and the jobs that claim."""

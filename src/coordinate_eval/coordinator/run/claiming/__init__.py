"""Who works on what: spans of work, claims on them, and the jobs that claim."""

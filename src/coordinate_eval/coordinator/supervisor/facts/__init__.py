"""The facts of a run at a poll: its files, the scheduler's answer, and what was seen before."""

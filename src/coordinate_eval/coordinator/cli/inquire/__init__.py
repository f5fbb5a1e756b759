"""Commands that show runs, suites and settings, and change nothing."""

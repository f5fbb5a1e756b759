"""What a user names: checkpoint, suite, settings, cluster file. Each is checked as it is read."""

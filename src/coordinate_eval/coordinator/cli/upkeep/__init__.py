"""Commands that look after an installation: is all well, and what has been measured."""

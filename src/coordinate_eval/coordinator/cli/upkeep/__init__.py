"""Commands that look after an installation, its runs and its measurements."""

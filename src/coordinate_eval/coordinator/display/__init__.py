"""The display of a plan that is not submitted: terminal, HTML page, scripts."""

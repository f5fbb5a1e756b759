"""Begin a run: create it whole, resume it, or score the responses of another one again."""

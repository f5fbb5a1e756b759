"""The hostile programs, family by family."""

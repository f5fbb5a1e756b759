"""What the supervisor decides, one idea a module, from facts to actions."""

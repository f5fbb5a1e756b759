"""The supervisor's decisions, one idea a module, from facts to actions."""

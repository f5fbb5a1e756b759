"""The command line: what a person types, and what the program prints."""

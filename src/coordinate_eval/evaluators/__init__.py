"""Benchmarks and models: the harness, the execution of programs, and the engines."""

"""What knows benchmarks and models: the harness, code execution and the engines."""

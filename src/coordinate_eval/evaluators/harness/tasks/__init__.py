"""The harness's tasks: found, loaded, and asked what their code does."""

"""The jobs that ask a judge, and the answers that are kept."""

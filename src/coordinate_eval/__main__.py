"""`python -m coordinate_eval`, which jobs use: the interpreter that submitted runs them."""

from coordinate_eval.coordinator.cli.app import main

main()

"""The command `python -m coordinate_eval`, which jobs run with the submitting interpreter."""

from coordinate_eval.coordinator.cli.app import main

main()

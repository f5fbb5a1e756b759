"""The command `python -m coordinate_eval`, which jobs run with the submitting interpreter."""

import sys

if not sys.flags.safe_path:
    # Python has put the working directory first, where anything may lie. Jobs are run with -P.
    del sys.path[0]

from coordinate_eval import _job_log

if sys.argv[1:2] and sys.argv[1].startswith("_"):
    # A job. Already a package that is missing may end it.
    _job_log.draw_line()
    from coordinate_eval.coordinator.cli.job_commands import main
else:
    from coordinate_eval.coordinator.cli.app import main

main()

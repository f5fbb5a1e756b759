"""A job that evaluates one dataset, as scripts around a scheduler do, with all its times simulated.

    python _dataset_job.py LINK LOAD_SECONDS SECONDS DONE

It loads the weights over the link of its node, then starts an engine, answers and runs its metric
in SECONDS, and writes the time of its end to the file DONE. Only the standard library, so that it
starts in a moment.
"""

import fcntl
import sys
import time
from pathlib import Path


def main(link: Path, load_seconds: float, seconds: float, done: Path) -> None:
    """Run the job."""
    with link.open("w") as file:
        # Loads one after another take the link as long as all at once, and the first ends sooner.
        fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(load_seconds)
    time.sleep(seconds)
    part = done.with_suffix(".part")
    part.write_text(str(time.time()))
    part.rename(done)


main(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]))

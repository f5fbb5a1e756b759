"""Make the suite from the command line, and print the paths of suite and checkpoint."""

import argparse
import sys
from pathlib import Path

from benchmarks.full_shape import __doc__ as about
from benchmarks.full_shape.make import make, scaled


def main() -> None:
    """Parse the arguments and make the suite."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="a folder that does not exist yet")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the items (default 1)")
    given = parser.parse_args()
    made = make(given.folder.absolute(), scaled(given.scale))
    sys.stdout.write(f"{made.suite}\n{made.checkpoint}\n")


main()

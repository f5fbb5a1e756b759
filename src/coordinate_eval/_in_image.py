"""The first thing that runs in a container: is the image fit for this program?

A file of its own, run by the image's Python whatever its version: it imports the standard library
alone. It looks at the versions of Python and of the packages that a job needs, and whether the
node's folders are there. Then our package is put behind the image's own on the path, and the job's
command replaces this one.
"""

import os
import re
import sys
from pathlib import Path

IMAGE = "COORDINATE_EVAL_IMAGE"
"""Environment variable with the image's name."""

NEEDS = "COORDINATE_EVAL_NEEDS"
"""Environment variable with the modules that it must have, such as `pydantic>=2.12 yaml`."""

SHARED = "COORDINATE_EVAL_SHARED"
"""Environment variable with a folder that must be the node's own."""

ON_NODE = "COORDINATE_EVAL_ON_NODE"
"""Environment variable with device and inode of that folder, as the node sees them."""

PYTHON = (3, 11)
OLDEST = ".".join(map(str, PYTHON))
"""Oldest Python that this program runs on."""

MORE = "more"
"""Folder beside our package with a folder for each package that counts if the image lacks it."""


PACKAGES = "/opt/coordinate-eval"
"""Folder in the container in which our package is mounted."""


def here() -> bool:
    """Return whether this process is in a container that a job of ours has started."""
    return __file__.startswith(f"{PACKAGES}/")


def lacks(image: str, needs: str) -> str:
    """Return what an image lacks and what to do, in words for a person; '' if it lacks nothing."""
    missing = []
    for need in needs.split():
        name, _, least = need.partition(">=")
        found = _version(name) if _is_there(name) else ""
        if not _is_there(name):
            missing.append(f"no {name}")
        elif _older(found, least):
            missing.append(f"{name} {found}")
    if not missing:
        return ""
    version = ".".join(map(str, sys.version_info[:3]))
    return (
        f"image {image} has {' and '.join(missing)} ({sys.executable}, Python {version}), and this "
        f"job needs {', '.join(needs.split())}: use an image that has them"
    )


def not_shared(folder: str, on_node: str) -> str:
    """Return why a folder is not the node's own; '' if it is, or if nobody knows."""
    if not on_node or not folder:
        return ""
    try:
        here = Path(folder).stat()
    except OSError as error:
        return f"{folder} is not in the container ({error.strerror})"
    if on_node == f"{here.st_dev}:{here.st_ino}":
        return ""
    return f"{folder} in the container is not the node's"


def _is_there(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


def _version(name: str) -> str:
    """Return the version of a package; '' if it comes from a distribution of another name."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _older(found: str, least: str) -> bool:
    """Return whether a version is older than another. An unknown one is not."""
    if not found or not least:
        return False
    numbers = [int(part) for part in re.findall(r"\d+", found)[:3]]
    return numbers < [int(part) for part in least.split(".")]


def main() -> None:
    """Look at the image, and become the job's command; exit with a message if it is unfit."""
    image, needs = os.environ.pop(IMAGE, ""), os.environ.pop(NEEDS, "")
    shared, on_node = os.environ.pop(SHARED, ""), os.environ.pop(ON_NODE, "")
    here = ".".join(map(str, sys.version_info[:2]))
    if sys.version_info < PYTHON:
        why = (
            f"image {image} has Python {here} ({sys.executable}), and this job needs {OLDEST}: use "
            "a newer image"
        )
    else:
        why = lacks(image, needs)
    lost = "" if why else not_shared(shared, on_node)
    if lost:
        why = f"{lost}: have [container] runtime mount it from the node"
    if why:
        sys.exit(f"coordinate-eval: container: {why}")
    packages = Path(__file__).absolute().parent.parent
    path = [*filter(None, [os.environ.get("PYTHONPATH")]), str(packages)]
    path += [str(each) for each in packages.glob(f"{MORE}/*") if not _is_there(each.name)]
    os.environ.update(PYTHONPATH=":".join(path), PYTHONNOUSERSITE="1", PYTHONSAFEPATH="1")
    argv = [sys.executable, "-P", "-m", "coordinate_eval", *sys.argv[1:]]
    os.execv(sys.executable, argv)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()

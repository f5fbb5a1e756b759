"""Facts of the machine that this process runs on, as observations name them."""

import contextlib
import os
from importlib import metadata
from pathlib import Path


def storage_of(path: str) -> str:
    """Where the file system that a checkpoint lies on is mounted: copies from one are alike."""
    folder = Path(path).resolve()
    while not folder.is_mount() and folder != folder.parent:
        folder = folder.parent
    return str(folder)


def engine_version(engine: str) -> str:
    """The installed version of an engine; empty where none is."""
    for package in (engine, f"{engine}-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return ""


def processor() -> str:
    """This machine's CPU, and how many cores it has."""
    name = os.uname().machine
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        models = (line.partition(":")[2] for line in lines if line.startswith("model name"))
        name = next(models, name).strip()
    return f"{name}, {os.cpu_count()} cores"

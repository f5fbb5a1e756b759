"""Facts about this machine, as observations record them."""

import contextlib
import os
from importlib import metadata
from pathlib import Path


def storage_of(path: str) -> str:
    """Return the mount point of the file system of a path: copies from one have similar rates.

    Of a URL, it is the bucket.
    """
    if "://" in path:
        return "/".join(path.split("/")[:3])
    folder = Path(path).resolve()
    while not folder.is_mount() and folder != folder.parent:
        folder = folder.parent
    return str(folder)


def engine_version(engine: str) -> str:
    """Return the installed version of an engine, or an empty string."""
    for package in (engine, f"{engine}-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return ""


def processor() -> str:
    """Return the model name of this machine's CPU and its number of cores."""
    name = os.uname().machine
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        models = (line.partition(":")[2] for line in lines if line.startswith("model name"))
        name = next(models, name).strip()
    return f"{name}, {os.cpu_count()} cores"


def gpus() -> list[str]:
    """Return the model names of this machine's NVIDIA GPUs, each once, from their driver."""
    names: set[str] = set()
    for file in Path("/proc/driver/nvidia/gpus").glob("*/information"):
        lines: list[str] = []
        with contextlib.suppress(OSError):
            lines = file.read_text().splitlines()
        names |= {line.partition(":")[2].strip() for line in lines if line.startswith("Model:")}
    return sorted(names)

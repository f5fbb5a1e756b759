"""scripts/slurm_dev.py, which is no part of a package, as a module."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Protocol

SCRIPT = Path(__file__).parents[1] / "scripts" / "slurm_dev.py"


class DevCluster(Protocol):
    """The part of `DevCluster` in scripts/slurm_dev.py that tests use."""

    dir: Path
    conf: Path

    def start_controller(self) -> None: ...
    def stop_controller(self) -> None: ...
    def start_node(self, name: str) -> None: ...
    def kill_node(self, name: str) -> None: ...
    def lose_node(self, name: str) -> None: ...


def slurm_dev() -> ModuleType:
    """The script, loaded. It has modules of its own beside it."""
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        return importlib.import_module("slurm_dev")
    finally:
        sys.path.remove(str(SCRIPT.parent))

"""scripts/slurm_dev.py, which is no part of a package, as a module."""

import importlib.util
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


def slurm_dev() -> ModuleType:
    """The script, loaded."""
    spec = importlib.util.spec_from_file_location("slurm_dev", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["slurm_dev"] = module
    spec.loader.exec_module(module)
    return module

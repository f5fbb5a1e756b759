"""A home of a user, with a Python in it that this user may run, whoever runs the tests."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.random_examples import LONG

FIRST_USER = 48_000
SYSTEM_PYTHON = Path("/usr/bin/python3")
_SOURCES = Path(__file__).parents[2]
_PACKAGE = _SOURCES / "src" / "coordinate_eval"


def python_for_all() -> Path | None:
    """Return a Python of this version that every user may run, if there is one."""
    wanted = f"{sys.version_info.major}.{sys.version_info.minor}"
    for python in (SYSTEM_PYTHON, Path(getattr(sys, "_base_executable", sys.executable))):
        with contextlib.suppress(OSError):
            real = python.resolve(strict=True)
            said = subprocess.run(
                [real, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                capture_output=True, text=True, check=False,
                user=None if os.geteuid() else FIRST_USER, cwd="/",
            )  # fmt: skip
            if said.stdout.strip() == wanted:
                return real
    return None


def old_bubblewraps(*versions: str) -> list[str]:
    """Return those of these versions that are tried: all in a long run, else those there are.

    No package has them, and not every machine can fetch their sources.
    """
    return [version for version in versions if LONG or _built(version).exists()]


def old_bubblewrap(version: str) -> Path:
    """Return the bubblewrap that `scripts/old_bubblewrap.sh` built, or skip the test."""
    built = _built(version)
    if not built.exists():
        pytest.skip(f"there is no bubblewrap {version}: run scripts/old_bubblewrap.sh")
    return built


def _built(version: str) -> Path:
    return _SOURCES / "build" / f"bubblewrap-{version}" / "bwrap"


def _packages() -> dict[Path, str]:
    """Return what the sandbox and the benign programs import, and where each goes."""
    found = {}
    code = (
        "import importlib.util, json, sys; from coordinate_eval.evaluators.sandbox import sandbox;"
        "import numpy;"
        "print(json.dumps({n.partition('.')[0]: m.__file__ for n, m in sys.modules.items()"
        " if 'site-packages' in str(getattr(m, '__file__', ''))}))"
    )
    environment = os.environ | {"PYTHONPATH": str(_PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True
    )
    for name, file in json.loads(done.stdout).items():
        site = next(folder for folder in Path(file).parents if folder.name == "site-packages")
        for path in (site / name, site / f"{name}.libs", Path(file)):
            if path.exists() and (path.is_dir() or path.parent == site):
                found[path] = path.name
    return found


def made_home(folder: Path, python: Path) -> Path:
    """Make a home with secrets, and a virtual environment as people have it there."""
    home = folder / "home"
    subprocess.run([python, "-m", "venv", "--without-pip", home / "venv"], check=True)
    site = next((home / "venv" / "lib").glob("python*/site-packages"))
    for path, name in _packages().items():
        if path.is_dir():
            shutil.copytree(path, site / name, ignore=shutil.ignore_patterns("tests"))
        else:
            shutil.copy(path, site / name)
    shutil.copytree(_PACKAGE, site / _PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(Path(__file__).with_name("puller.py"), home / "puller.py")
    (home / "tmp").mkdir()
    return home


def beside(home: Path, bubblewrap: Path) -> Path:
    """Copy a bubblewrap to where the home's owner may run it. Return the folder, for PATH."""
    folder = home / "bin"
    folder.mkdir()
    shutil.copy(bubblewrap, folder / "bwrap")
    return folder

"""Which level is found where: for root and others, with each bubblewrap, and without namespaces."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.cases import OLDEST_BUBBLEWRAP
from tests.hostile.home import (
    FIRST_USER,
    beside,
    made_home,
    old_bubblewrap,
    old_bubblewraps,
    python_for_all,
)

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
USER = FIRST_USER if os.geteuid() == 0 else os.geteuid()
USERS = [pytest.param(0, marks=AS_ROOT), USER]

PROBE = """
import sys
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.sandbox.sandbox import Sandbox
try:
    print(Sandbox.probe(allow_unsafe=sys.argv[1] == "True").level)
except UserError as error:
    print("refused:", error)
"""


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A home that everybody may read."""
    python = python_for_all()
    if python is None:
        pytest.skip("no Python of this version that every user may run")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        yield made_home(Path(folder), python)


def probed(
    home: Path, user: int, allow_unsafe: bool = False, before: str = "", path: Path | None = None
) -> str:
    """Return the level that a metric job of this user would find, or its refusal."""
    python = str(home / "venv" / "bin" / "python")
    environment = {"PATH": f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"]}
    done = subprocess.run(
        [*before.split(), python, "-P", "-c", PROBE, str(allow_unsafe)],
        env=environment, cwd="/", capture_output=True, text=True, check=False,
        user=user if user != os.geteuid() else None,
        group=user if user != os.geteuid() else None,
        extra_groups=[] if user != os.geteuid() else None,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.fixture
def no_bubblewrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for PATH in which bubblewrap does not work."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "bwrap").write_text("#!/bin/sh\nexit 1\n")
        (Path(folder) / "bwrap").chmod(0o755)
        yield Path(folder)


OLD = old_bubblewraps("0.6", OLDEST_BUBBLEWRAP)


@pytest.mark.hostile
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("version", ["", *OLD])
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="no bubblewrap")
def test_bubblewrap_is_preferred_if_it_can_do_all(home: Path, user: int, version: str) -> None:
    if not version:  # the machine's own
        assert probed(home, user) == "bubblewrap"
        return
    folder = beside(home, old_bubblewrap(version))
    try:
        level = "namespaces" if version == "0.6" else "bubblewrap"
        assert probed(home, user, path=folder) == level
    finally:
        shutil.rmtree(folder)


@pytest.mark.hostile
@pytest.mark.parametrize("user", USERS)
def test_namespaces_are_next(home: Path, user: int, no_bubblewrap: Path) -> None:
    assert probed(home, user, path=no_bubblewrap) == "namespaces"


BUBBLEWRAP = shutil.which("bwrap")
NO_NAMESPACES = f"{BUBBLEWRAP} --unshare-user --disable-userns --dev-bind / / --"
"""As a machine is whose users may not create user namespaces."""
NO_RIGHT = "setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin --"
"""As a machine is where root may not create namespaces."""
CAN_FORBID = pytest.mark.skipif(
    BUBBLEWRAP is None
    or "--disable-userns"
    not in subprocess.run(
        [BUBBLEWRAP, "--help"], capture_output=True, text=True, check=False
    ).stdout,
    reason="no bubblewrap 0.8 to forbid user namespaces with",
)


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("user", "before"),
    [
        pytest.param(USER, NO_NAMESPACES, marks=CAN_FORBID),
        pytest.param(0, NO_RIGHT, marks=AS_ROOT),
    ],
)
def test_without_namespaces_it_is_refused(
    home: Path, no_bubblewrap: Path, user: int, before: str
) -> None:
    said = probed(home, user, before=before, path=no_bubblewrap)
    assert said.startswith("refused: ")
    for word in ("bubblewrap", "namespaces", "allow_unsafe_code"):
        assert word in said


@pytest.mark.hostile
@CAN_FORBID
def test_limits_are_for_those_who_ask(home: Path, no_bubblewrap: Path) -> None:
    said = probed(home, USER, allow_unsafe=True, before=NO_NAMESPACES, path=no_bubblewrap)
    assert said == "limits"


@pytest.mark.hostile
@AS_ROOT
def test_root_runs_nothing_without_a_sandbox(home: Path, no_bubblewrap: Path) -> None:
    said = probed(home, 0, allow_unsafe=True, before=NO_RIGHT, path=no_bubblewrap)
    assert said.startswith("refused: ")
    assert "root" in said

"""An image with an engine and nothing of this program, as a folder, and ways into it.

The folder has what a Debian has without its packages. The interpreter of this environment, and its
packages but this one, are added when it is entered.
"""

import json
import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

ENGINE = "/opt/engine"
"""Where the packages of this environment are in the image. Not being a site's folder, it does not
lead to this program, which is installed from a checkout."""

INTERPRETER = Path(sys.executable).resolve().parents[1]

BUBBLE = Path(__file__).parent / "fakes" / "bubble"


def make_image(folder: Path, engine: str = ENGINE) -> Path:
    """Make the image in a folder that is not there yet; `engine` may be a folder with nothing."""
    for name in ("etc", "proc", "sys", "dev", "tmp", "run", "opt", "root", "usr", "var/tmp"):
        (folder / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (folder / name).symlink_to(f"usr/{name}")
    for name in ("passwd", "group"):
        shutil.copy(f"/etc/{name}", folder / "etc")
    for name in ("resolv.conf", "hosts", "localtime"):
        (folder / "etc" / name).touch()
    variables = {"PATH": f"{INTERPRETER}/bin:/usr/bin", "PYTHONPATH": engine}
    lines = [f"{name}={value}" for name, value in variables.items()]
    (folder / "etc" / "environment").write_text("".join(f"{line}\n" for line in lines))
    hooks = folder / ".singularity.d" / "env"
    hooks.mkdir(parents=True)
    (hooks / "90-environment.sh").write_text("".join(f"export {line}\n" for line in lines))
    return folder


RUNTIMES = ["bubblewrap", *(["apptainer"] if shutil.which("apptainer") else [])]
"""What an image can be entered with: Apptainer is in the root of `make test-slurm RELEASE=sid`."""


def in_container(runtime: str, image: Path) -> dict[str, Any]:
    """Return the settings of jobs in the image, as variables."""
    packages = sysconfig.get_path("purelib")
    parts = [f"{INTERPRETER}:{INTERPRETER}:ro", f"{packages}:{ENGINE}:ro"]
    made = {"COORDINATE_EVAL_CONTAINER_IMAGE": str(image)}
    if runtime == "apptainer":
        args = ["--bind=/usr", *(f"--bind={part}" for part in parts)]
        if os.geteuid() == 0:
            args.append("--userns")
        return made | {
            "COORDINATE_EVAL_CONTAINER_RUNTIME": "apptainer",
            "COORDINATE_EVAL_CONTAINER_ARGS": json.dumps(args),
        }
    if shutil.which("bwrap") is None:
        pytest.skip("needs bubblewrap: scripts/packages.sh")
    words = [str(BUBBLE), "{image}", *(word for part in parts for word in ("--bind", part))]
    runtime = shlex.join(words) + " {mounts} {command}"
    return made | {"COORDINATE_EVAL_CONTAINER_RUNTIME": runtime}

"""The command as a user without Slurm calls it, and what is left of a call that is refused."""

import os
import shutil
from pathlib import Path

import yaml
from typer.testing import CliRunner, Result

from coordinate_eval.coordinator.cli.app import app, with_default_command
from coordinate_eval.errors import CoordinateError
from tests.runs import Workspace
from tests.tiny import tiny_model

NODE = {
    "name": "n1", "gpus": 8, "free_gpus": 8, "gpu_type": "h200", "gpu_memory_gib": 141,
    "cpus": 128, "memory_gib": 1000,
}  # fmt: skip
GIVEN = """\
datasets:
- {name: big, items: 5000, prior: {gpu_seconds: 900, cpu_seconds: 4000,
   chunk_overhead_seconds: 0.5, floor_seconds: 60}}
- {name: long, items: 40, prior: {gpu_seconds: 70, floor_seconds: 69}, splittable: false}
- {name: code, items: 164, prior: {gpu_seconds: 12, cpu_seconds: 900, floor_seconds: 5}}
"""


def user_without_slurm(folder: Path) -> Workspace:
    """A user on a machine without Slurm, with a suite of given costs and a cluster file."""
    made = Workspace(folder)
    made.environ["COORDINATE_EVAL_CLUSTER"] = "local"
    assert made.memory.is_dir()
    (made.folder / "given.yaml").write_text(GIVEN)
    (made.folder / "cluster.yaml").write_text(yaml.safe_dump({"nodes": [NODE]}))
    return made


def dry(user: Workspace, *more: object, checkpoint: object = None) -> tuple[object, ...]:
    """Arguments of a dry run on the cluster file."""
    given, cluster = user.folder / "given.yaml", user.folder / "cluster.yaml"
    where = checkpoint or tiny_model()
    return "run", where, "--suite", given, "--cluster", cluster, "--dry-run", *more


def refused(user: Workspace, *args: object, words: tuple[str, ...], **environ: str) -> str:
    """The message of a command that is refused, after which everything is as it was."""
    before = everything(user.folder)
    done = user.call(*args, status=2, **environ)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert_clear(done.stderr, words)
    assert everything(user.folder) == before
    return done.stderr


def called_here(user: Workspace, *args: object, **environ: str) -> Result:
    """Call a command within this process, which takes no second to start; it succeeds."""
    given = with_default_command(list(map(str, args)))
    done = CliRunner().invoke(app, given, env=user.environ | environ)
    assert done.exit_code == 0, f"{done.output}\n{done.exception!r}"
    return done


def refused_here(user: Workspace, *args: object, words: tuple[str, ...], **environ: str) -> None:
    """The same within this process, where a second a case would add up to minutes."""
    before = everything(user.folder)
    ran = CliRunner().invoke(app, list(map(str, args)), env=user.environ | environ)
    error = ran.exception
    assert isinstance(error, CoordinateError | SystemExit), repr(error)
    message = str(error) if isinstance(error, CoordinateError) else ran.stderr
    status = error.exit_status if isinstance(error, CoordinateError) else ran.exit_code
    assert status == 2, message
    assert ran.stdout == ""
    assert_clear(message, words)
    assert everything(user.folder) == before


def assert_clear(message: str, words: tuple[str, ...]) -> None:
    """A few lines that say these words; a long message may be in a box that breaks lines."""
    assert 0 < len(message.splitlines()) < 9, message
    flat = " ".join(message.replace("│", " ").split())
    for word in words:
        assert word in flat, message


def everything(folder: Path) -> set[Path]:
    """All there is but what others keep: the harness's data sets, locks."""
    others = {
        folder / ".cache",
        folder / "cache",
        folder / "cache" / f"requests-{os.geteuid()}",
    }
    return {
        path
        for path in folder.rglob("*")
        if path not in others and folder / ".cache" not in path.parents and path.suffix != ".lock"
    }


def copy_of_model(folder: Path) -> Path:
    """A checkpoint to spoil."""
    return Path(shutil.copytree(tiny_model(), folder))

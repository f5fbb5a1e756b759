"""Requests for runs where nobody can submit: into the spool, and out of it."""

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from coordinate_eval._after_save import REQUESTED
from coordinate_eval.coordinator.cli.launch.run import start_run
from coordinate_eval.coordinator.cli.output import say, write_json
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.checkpoints import remote
from coordinate_eval.coordinator.inputs.folders import working_in
from coordinate_eval.coordinator.inputs.layers import flatten
from coordinate_eval.coordinator.inputs.layers import load as load_settings
from coordinate_eval.coordinator.inputs.settings import FOLDERS, Settings
from coordinate_eval.coordinator.planning.new_run import Inputs, read_inputs
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.own import place
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.run.starting import spool
from coordinate_eval.coordinator.run.starting.spool import Spooled, Waiting
from coordinate_eval.errors import ClusterSilent, CoordinateError, UserError

_LOOK_SECONDS = 30.0
"""Time between two looks of a supervisor at the spool."""

_END_SECONDS = 120.0
"""Time that a supervisor which ends gives to a submission that has begun."""


class _NotThere(UserError):
    """The checkpoint of a request is gone, or another one is in its place."""


def why_requested(settings: Settings) -> str:
    """Return why a run that waits for GPUs is requested here and not submitted; mostly empty."""
    if not settings.queue or not clusters.why_not_from_here(clusters.DESCRIBED):
        return ""
    chosen = clusters.chosen(settings)
    return clusters.why_not_from_here(chosen.name) if chosen is not None else ""


def request(
    inputs: Inputs,
    given: Settings,
    why: str,
    *,
    config: Path | None,
    tokenizer: Path | None,
    mapping: Path | None,
    base: Path | None,
    run_dir: Path | None,
    as_json: bool,
) -> int:
    """Write a request for the run of these inputs. Return the exit status."""
    checkpoint, named = inputs.checkpoint.path, checkpoints.named(inputs.checkpoint)
    values = flatten(given.model_dump(mode="json", exclude_unset=True))
    for name in FOLDERS:  # the spool is in runs_dir; a default is of this machine
        if name == "runs_dir" or values.get(name) == getattr(Settings(), name):
            values.pop(name, None)
    spooled = Spooled(
        checkpoint=checkpoint,
        identity=inputs.checkpoint.identity,
        folder_inode=remote.located(checkpoint).parent.stat().st_ino,
        suite=inputs.suite,
        settings=values,
        step=inputs.step,
        model_config_file=_absolute(config),
        tokenizer=_absolute(tokenizer),
        mapping=_absolute(mapping),
        base=_absolute(base),
        members=[] if isinstance(named, Path) else list(map(str, named.paths)),
        weights=[] if isinstance(named, Path) else named.weights,
        run_dir=_absolute(run_dir),
        strict=inputs.strict,
        folder=str(Path.cwd()),
    )
    path = spool.put(Path(given.runs_dir).expanduser(), spooled)
    if as_json:
        write_json(
            {"run": inputs.run_id, "dir": None, "job": None, "state": "requested"}
            | {"request": str(path)}
        )
    else:
        sys.stdout.write(f"{path}\n")
        say(
            f"run {inputs.run_id} is requested: {why}. A supervisor of yours submits it, or "
            "`coordinate-eval watch` where sbatch is; `coordinate-eval watch --cron` has a line "
            "for cron"
        )
    return REQUESTED


def submit_waiting(settings: Settings, *, dry: bool = False) -> list[Waiting]:
    """Submit what is due in the user's spools of `runs_dir`. Return all that was in them.

    One that fails stops no other, unless the scheduler is silent for all. Nothing is submitted if
    this is `dry`, or from a machine without sbatch.
    """
    runs_dir = Path(settings.runs_dir).expanduser().absolute()
    found = list(spool.waiting(runs_dir, time.time()))
    able = not (dry or clusters.why_not_from_here(clusters.DESCRIBED))
    for each in found:
        if each.due and able:
            _submit(each, runs_dir, settings)
            say(each.words())
    return found


def _submit(each: Waiting, runs_dir: Path, own: Settings) -> None:
    """Submit a run of the spool, unless another process does."""
    try:
        held = each.take(time.time())
    except OSError as error:  # a full disk
        each.error = f"its attempt cannot be noted: {error.strerror}"
        return
    if not held or each.spooled is None:
        return
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what a run says of itself
            each.run = _start(_as_seen_here(each.spooled, own), runs_dir)
        each.state, each.error = "submitted", ""
        each.done()
    except _NotThere as error:
        each.state, each.error = "dropped", str(error)
        each.done()
    except (CoordinateError, OSError) as error:
        with contextlib.suppress(OSError):  # a full disk: this attempt counts as killed later
            each.failed(error, time.time())
        each.error = str(error)
        if isinstance(error, ClusterSilent):
            raise


def _start(spooled: Spooled, runs_dir: Path) -> Path:
    """Start the run that was asked for, or find it. Return its directory."""
    settings, _ = load_settings({**spooled.settings, "runs_dir": str(runs_dir)})
    there = Path(spooled.folder).is_dir()
    with working_in(spooled.folder if there else ""):
        inputs = read_inputs(
            settings,
            spooled.suite,
            spooled.what,
            step=spooled.step,
            config=Path(spooled.model_config_file) if spooled.model_config_file else None,
            tokenizer=Path(spooled.tokenizer) if spooled.tokenizer else None,
            mapping=Path(spooled.mapping) if spooled.mapping else None,
            base=Path(spooled.base) if spooled.base else None,
            strict=spooled.strict,
        )
        if inputs.checkpoint.identity != spooled.identity:
            raise _NotThere("the checkpoint has changed since its evaluation was asked for")
        root = Path(spooled.run_dir) if spooled.run_dir else place(runs_dir, inputs.run_id)
        start_run(inputs if there else replace(inputs, folder=""), root)
    return root


def _as_seen_here(spooled: Spooled, settings: Settings) -> Spooled:
    """Return what was asked for with the paths of this machine."""
    mounts = [
        (os.path.expanduser(mount.source), mount.target)  # noqa: PTH111 - keeps its text
        for mount in settings.container.mounted
    ]
    remote.forget()
    for each in (spooled, spooled.outside(mounts)):
        path = remote.located(each.checkpoint)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if path.parent.stat().st_ino == spooled.folder_inode:
                asked = each.members or [each.checkpoint]
                if all(remote.located(name).exists() for name in asked):
                    return each
                raise _NotThere("the checkpoint is gone")
    raise UserError(
        f"{spooled.checkpoint} is not the folder here that it was where the evaluation was asked "
        "for: say where the container had it from, as [container] mounts = "
        f'["SOURCE:{remote.located(spooled.checkpoint).parent}"]'
    )


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(remote.located(path).absolute())


class Taker:
    """A child process that empties the spool of a run's `runs_dir` while the run is supervised."""

    def __init__(self, run_dir: RunDir, run: Run) -> None:
        self._argv = [*jobs.program(sys.executable), "_submit", str(run_dir.root)]
        self._runs_dir = Path(run.settings.runs_dir).expanduser()
        on_slurm = run.cluster == clusters.DESCRIBED
        self._able = on_slurm and not clusters.why_not_from_here(run.cluster)
        self._child: subprocess.Popen[bytes] | None = None
        self._next = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(_END_SECONDS)

    def look(self) -> None:
        """Start the child if something is due, and none is there. Call it as often as you like."""
        if not self._able or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _LOOK_SECONDS
        if self._child is not None and self._child.poll() is None:
            return
        with contextlib.suppress(UserError, OSError):
            if any(each.due for each in spool.waiting(self._runs_dir, time.time())):
                self._child = subprocess.Popen(self._argv, stdin=subprocess.DEVNULL)

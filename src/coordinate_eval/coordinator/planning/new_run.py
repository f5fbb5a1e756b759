"""The steps from what a user gives to a run without a plan.

`read_inputs` → `Inputs`; `new_run` → `Run`. The checkpoint is inspected, and nothing is written.
The steps that follow are in `plan_run`.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coordinate_eval import _files
from coordinate_eval._engines import kind_of
from coordinate_eval.clusters.protocol import JobLimits
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.checkpoints import judge_checkpoint, saved
from coordinate_eval.coordinator.inputs.checkpoints.mixed import served
from coordinate_eval.coordinator.inputs.checkpoints.mixed.average import Members
from coordinate_eval.coordinator.inputs.folders import folder_for_tasks
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning import reviewed_plan
from coordinate_eval.coordinator.planning.plan import Plan
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.run.starting.create import run_id
from coordinate_eval.errors import Unfinished, UserError
from coordinate_eval.evaluators.engines import base as engines
from coordinate_eval.evaluators.engines import vllm_arguments
from coordinate_eval.records import Checkpoint, CheckpointFormat, Suite


@dataclass(frozen=True)
class Inputs:
    """Everything the user gives: a checkpoint, a suite, settings, and perhaps a plan to follow."""

    checkpoint: Checkpoint
    suite: Suite
    settings: Settings
    reviewed: Plan | None = None
    """The plan of `--plan`, to be run as it is."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Datasets that were asked for and cannot be run, with the reason."""
    folder: str = ""
    """The folder of the command, if tasks may look there for data at relative paths."""
    step: int | None = None
    """The training step of the checkpoint, if the user tells it."""
    against: str = ""
    """The directory of the run with which this one is compared until that is decided."""
    strict: bool = True
    """Refuse a suite with a dataset that is known to be impossible to build."""

    @property
    def max_length(self) -> int:
        """Return the length of this run's context, in tokens."""
        asked, model = self.settings.trial.max_length, self.checkpoint
        if kind_of(self.settings.engine.name).model_class == "hf":
            longest = usual = model.hf_length or model.max_length
        else:
            longest = model.max_length
            usual = model.short_length or longest
        return min(longest, asked or usual)

    @property
    def run_id(self) -> str:
        """Return the id of the run of these inputs."""
        return run_id(self.checkpoint, self.suite, self.settings, self.against)


def read_inputs(
    settings: Settings,
    suite: Suite,
    checkpoint: Path | Members | None,
    *,
    step: int | None = None,
    config: Path | None = None,
    tokenizer: Path | None = None,
    mapping: Path | None = None,
    base: Path | None = None,
    reviewed: Plan | None = None,
    strict: bool = True,
) -> Inputs:
    """Inspect the checkpoint, and check that the reviewed plan is of these inputs.

    Without a checkpoint, that of the plan is taken. `config` and `tokenizer` stand in for the
    files of the checkpoint, `mapping` for the shipped ones, and `base` for the base of an adapter.
    `strict` is that of `Inputs`.

    Raises:
        UserError: A file is missing or malformed, the plan is of other inputs, or the engine has no
            such arguments.
    """
    if reviewed is not None:
        checkpoint = checkpoint or checkpoints.named(reviewed.checkpoint)
        base = base or checkpoints.base_of(reviewed.checkpoint)
    if checkpoint is None:
        raise UserError("give a checkpoint CKPT, or --plan FILE of a plan that names one")
    given = {"config": config, "tokenizer": tokenizer, "mapping": mapping, "base": base}
    inspected = _inspect(checkpoint, settings, **given)
    if inspected.format is CheckpointFormat.AVERAGE:  # its own name may tell none
        step = checkpoints.trained_step(inspected) if step is None else step
    rubrics = [dataset.rubric for dataset in suite.datasets if dataset.rubric]
    settings = judge_checkpoint.named(settings, rubrics)
    folder = folder_for_tasks(str(Path.cwd()), inspected)
    loaded = settings.engine.loads(inspected)
    if settings.stage.where == "none" and (loaded.converted or loaded.remote):
        done = "converted for engines" if loaded.converted else "fetched from its store"
        raise UserError(
            f"{loaded.path} has to be {done}, which is done where it is staged: "
            "set [stage] where to shm, or to `local DIR`"
        )
    found = Inputs(inspected, suite, settings, reviewed, folder=folder, step=step, strict=strict)
    if reviewed is not None:
        reviewed_plan.check_same(reviewed, inspected, suite, settings, found.max_length)
    here = settings.container.image_of("trial") is None
    engines.by_name(settings.engine.name).check_args(settings.engine.args, here=here)
    if settings.judge.engine_args:
        same = settings.container.image_of("judge") is None
        engines.by_name(settings.engine.name).check_args(settings.judge.engine_args, here=same)
    if settings.engine.serves_adapters:
        served.check(inspected, settings.engine.args)
    if settings.engine.name == "vllm" and here:
        vllm_arguments.check_quantization(inspected.quantization)
    return found


def _inspect(what: Path | Members, settings: Settings, **given: Path | None) -> Checkpoint:
    """Return the checkpoint. What a run that waits cannot use yet may still be being written."""
    try:
        found = checkpoints.inspect(what, **given, cache=Path(settings.cache_dir).expanduser())
        if not clusters.is_file(settings.cluster):
            checkpoints.check_usable(found)
        return found
    except UserError as error:
        paths = what.paths if isinstance(what, Members) else [what]
        if settings.queue and any(map(saved.is_young, paths)):
            raise Unfinished(
                f"{error}\nIt has just been changed: if it is being written, ask again afterwards"
            ) from error
        raise


def new_run(
    inputs: Inputs, cluster: str, now: float, *, exclusive: bool, limits: JobLimits | None = None
) -> Run:
    """Return the run of these inputs as it is known before it has a plan."""
    return Run(
        id=inputs.run_id,
        nonce=_files.token()[:6],
        created=now,
        cluster=cluster,
        python=sys.executable,
        folder=inputs.folder,
        checkpoint=inputs.checkpoint,
        step=inputs.step,
        suite=inputs.suite,
        settings=inputs.settings,
        max_length=inputs.max_length,
        staged_bytes=checkpoints.staged_bytes(inputs.checkpoint),
        exclusive=exclusive,
        limits=limits or JobLimits(),
        left_out=dict(inputs.left_out),
        against=inputs.against,
        strict=inputs.strict or inputs.reviewed is not None,
    )

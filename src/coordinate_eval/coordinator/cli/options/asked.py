"""The options that `run`, `watch` and `prefetch` share, and what they ask for."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from coordinate_eval.coordinator.cli.options import common, launching
from coordinate_eval.coordinator.inputs import layers
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.records import Suite

_SETTINGS = {
    "deadline": "deadline_seconds",
    "objective": "restraint",
    "engine": "engine.name",
    "engine_args": "engine.args",
    "keep": "stage.keep",
    "judge_url": "judge.base_url",
    "judge_model": "judge.model",
    "partition": "slurm.partition",
    "account": "slurm.account",
    "qos": "slurm.qos",
    "reservation": "slurm.reservation",
    "constraint": "slurm.constraint",
}
"""Options whose settings have other names."""

_OF_SUITE = ("only", "skip", "group", "limit", "precision")
"""Options that select a part of the suite."""

_STAND_INS = {
    "model_config": "config",
    "tokenizer": "tokenizer",
    "mapping": "mapping",
    "base": "base",
}
"""Options with files that are taken in place of a checkpoint's own. All others are settings."""


@dataclass(frozen=True)
class AskedPrompts:
    """The prompts to be built."""

    suite: launching.Suite = None
    only: common.Only = None
    skip: launching.Skip = None
    group: launching.Group = None
    limit: launching.Limit = None
    precision: launching.Precision = None
    engine: common.Engine = None
    model_config: launching.ModelConfig = None
    tokenizer: launching.Tokenizer = None
    mapping: launching.Mapping = None
    base: launching.Base = None

    @property
    def stand_ins(self) -> dict[str, Any]:
        """Return the files to take in place of a checkpoint's own, as `read_inputs` names them."""
        return {name: getattr(self, option) for option, name in _STAND_INS.items()}

    def load(self, settings_file: Path | None) -> tuple[Settings, Suite]:
        """Return the settings with these options, those that are None left out, and the suite."""
        from coordinate_eval.coordinator.inputs.suites.suite import load, narrow

        given = {each.name: getattr(self, each.name) for each in fields(self)}
        no_settings = {*_OF_SUITE, *_STAND_INS}
        flags = {_SETTINGS.get(n, n): value for n, value in given.items() if n not in no_settings}
        settings, _ = layers.load(flags, settings_file)
        return settings, narrow(
            load(settings.suite),
            only=self.only or (),
            skip=self.skip or (),
            groups=self.group or (),
            limit=self.limit,
            precision=self.precision,
        )


@dataclass(frozen=True)
class AskedRun(AskedPrompts):
    """The evaluation to be run, where, and how it is planned."""

    engine_args: launching.EngineArgs = None
    judge_url: common.JudgeUrl = None
    judge_model: common.JudgeModel = None
    cluster: common.Cluster = None
    nodes: launching.Nodes = None
    max_gpus: launching.MaxGpus = None
    gpu_type: launching.GpusOfType = None
    queue: launching.Queue = None
    keep: launching.Keep = None
    partition: common.Partition = None
    account: common.Account = None
    qos: common.Qos = None
    reservation: common.Reservation = None
    constraint: launching.Constraint = None
    objective: launching.Objective = None
    deadline: launching.Deadline = None
    first_signal: launching.FirstSignal = None


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for each field of its parameter `asked`, a dataclass."""
    parameters = inspect.signature(command).parameters
    kind = parameters["asked"].annotation
    options = inspect.signature(kind).parameters

    @functools.wraps(command)
    def spread_command(**given: Any) -> None:  # noqa: ANN401 - values of any options
        asked = kind(**{name: given.pop(name) for name in options})
        command(asked=asked, **given)

    flat: list[inspect.Parameter] = []
    for parameter in parameters.values():
        flat += options.values() if parameter.name == "asked" else [parameter]
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in flat]
    spread_command.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    return spread_command

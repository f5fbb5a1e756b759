"""The options that `run`, `watch` and `prefetch` share, and what they ask for."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from coordinate_eval.coordinator.cli.options import common
from coordinate_eval.coordinator.cli.options.parsing import (
    json_object,
    plan_option,
    restraint,
    seconds,
    what_option,
    where_option,
)
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

_STAND_INS = ("config", "tokenizer", "mapping", "base")
"""Options with files that are taken in place of a checkpoint's own. All others are settings."""


@dataclass(frozen=True)
class AskedPrompts:
    """The prompts to be built."""

    suite: Annotated[
        str | None,
        what_option("--suite SUITE", "A shipped suite's name, or a suite file.", shown="base"),
    ] = None
    only: common.Only = None
    skip: Annotated[
        list[str] | None,
        what_option("--skip NAMES", "Leave out these datasets; names or patterns: gsm8k,arc_*."),
    ] = None
    group: Annotated[
        list[str] | None,
        what_option("--group NAMES", "Evaluate only these groups of datasets: maths,code."),
    ] = None
    limit: Annotated[
        int | None, what_option("--limit N", "Use at most N items of each task.", min=1, max=10**9)
    ] = None
    precision: Annotated[
        float | None,
        what_option(
            "--precision SE",
            "Use as many random items of each dataset as give its score a standard error of at "
            "most SE, such as 0.01.",
            min=0.0001,
            max=0.5,
        ),
    ] = None
    engine: common.Engine = None
    config: common.ModelConfig = None
    tokenizer: common.Tokenizer = None
    mapping: common.Mapping = None
    base: common.Base = None

    @property
    def stand_ins(self) -> dict[str, Any]:
        """Return the files to take in place of a checkpoint's own, as `read_inputs` names them."""
        return {name: getattr(self, name) for name in _STAND_INS}

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

    engine_args: Annotated[
        dict[str, Any] | None,
        what_option(
            "--engine-args JSON",
            'Arguments of the engine, as JSON: {"dtype": "float32"}.',
            parser=json_object,
        ),
    ] = None
    judge_url: common.JudgeUrl = None
    judge_model: common.JudgeModel = None
    cluster: common.Cluster = None
    nodes: Annotated[
        str | None,
        where_option(
            "--nodes --max-nodes NODES",
            "The number of nodes to use at most, or their names: gpu[1-4,7].",
        ),
    ] = None
    max_gpus: Annotated[int | None, where_option("--max-gpus N", "Use at most N GPUs in all.")] = (
        None
    )
    gpu_type: Annotated[
        str | None,
        where_option(
            "--gpu-type TYPE",
            "Use only GPUs of this type, such as h100.",
            shown="the type whose free GPUs are fastest together",
        ),
    ] = None
    queue: Annotated[
        bool | None,
        where_option(
            "--queue",
            "If no GPU is free, wait for one; if few are, begin on them and take more as they "
            "become free. `watch` always does.",
        ),
    ] = None
    keep: Annotated[
        bool | None,
        where_option(
            "--keep/--no-keep",
            "Hold the checkpoint's files by hard links until all responses are there, so that "
            "training may delete it.",
            shown="keep",
        ),
    ] = None
    partition: common.Partition = None
    account: common.Account = None
    qos: common.Qos = None
    reservation: common.Reservation = None
    constraint: Annotated[
        str | None, where_option("--constraint FEATURES", "Slurm node features.")
    ] = None
    objective: Annotated[
        float | None,
        plan_option(
            "--objective NAME",
            "makespan: end as soon as possible; gpu-hours: use few GPUs.",
            shown="makespan",
            parser=restraint,
        ),
    ] = None
    deadline: Annotated[
        float | None,
        plan_option(
            "--deadline TIME",
            "Refuse a plan that takes longer: 900 (seconds), 15m, 2h.",
            parser=seconds,
        ),
    ] = None
    first_signal: Annotated[
        bool | None,
        plan_option(
            "--first-signal", "Evaluate a slice of every dataset first, for rough scores early."
        ),
    ] = None


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

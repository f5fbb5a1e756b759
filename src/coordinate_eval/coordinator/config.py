"""Settings: defaults, a TOML file, the environment and flags, in that order; later ones win.

The environment variable of `[slurm] partition` is `COORDINATE_EVAL_SLURM_PARTITION`; lists and
tables are given as JSON. What a run is submitted with is frozen in its `run.json`.
"""

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import ConfigDict, Field, ValidationError

from coordinate_eval.errors import UserError
from coordinate_eval.records import EngineSettings, Record, SlurmSettings

PREFIX = "COORDINATE_EVAL_"
FILE_VARIABLE = "COORDINATE_EVAL_CONFIG"


class _Section(Record):
    """A part of the settings: no figure in it may be infinite."""

    model_config = ConfigDict(allow_inf_nan=False)


class StageSettings(_Section):
    """Where weights are staged and what that costs."""

    root: str = Field(default="/dev/shm", description="a memory file system of each node")  # noqa: S108
    gigabits_per_node: float = Field(default=25.0, gt=0, description="storage link of one node")


class TrialSettings(_Section):
    """What one trial asks for, GPUs apart."""

    cpus: int = Field(default=4, ge=1)
    memory_gib: float = Field(default=16.0, gt=0, description="host memory, weights apart")
    engine_start_seconds: float = Field(default=40.0, ge=0)
    max_length: int | None = Field(default=None, ge=8, description="tokens; else the model's")
    tensor_parallel: int | None = Field(default=None, ge=1, description="else what fits")
    time_limit_factor: float = Field(default=4.0, ge=1, description="limit over prediction")
    min_minutes: int = Field(default=15, ge=1, description="shortest time limit asked for")
    max_minutes: int = Field(default=720, ge=1, description="longest time limit asked for")


class MetricSettings(_Section):
    """How questions of metrics are answered."""

    cpus: int = Field(default=8, ge=1, description="cores for all metric jobs together")
    memory_gib: float = Field(default=4.0, gt=0, description="per core")
    allow_unsafe_code: bool = Field(default=False, description="run programs without isolation")


class SupervisorSettings(_Section):
    """How a run is watched."""

    poll_seconds: float = Field(default=5.0, gt=0)
    patience_seconds: float = Field(default=600.0, gt=0, description="for a job to start")
    minutes: int = Field(default=240, ge=5, description="time limit; it resubmits itself")
    memory_gib: float = Field(default=8.0, gt=0)
    cpus: int = Field(default=2, ge=1)


class RaySettings(_Section):
    """The embedded cluster of this machine."""

    gpus: int | None = Field(default=None, ge=1, description="else those found; one without any")
    cpus: int | None = Field(default=None, ge=1, description="else this machine's")


class Settings(Record):
    """Everything that can be set."""

    suite: str = Field(default="base", description="name of a shipped suite, or a file")
    cluster: str = Field(default="auto", description="auto, slurm, ray, or a cluster file")
    runs_dir: str = Field(
        default_factory=lambda: str(Path("~/.coordinate-eval/runs").expanduser()),
        description="run directories; on storage that all nodes share",
    )
    cache_dir: str = Field(
        default_factory=lambda: platformdirs.user_cache_dir("coordinate-eval"),
        description="built requests; on storage that all nodes share",
    )
    priors_dir: str = Field(
        default_factory=lambda: str(Path("~/.coordinate-eval/priors").expanduser()),
        description="what finished runs took; on storage that all nodes share",
    )
    nodes: str | None = Field(default=None, description="at most so many nodes, or those to take")
    max_nodes: int | None = Field(default=None, ge=1)
    max_gpus: int | None = Field(default=None, ge=1)
    objective: Literal["makespan", "gpu-hours"] = Field(
        default="makespan", description="what a plan makes small: makespan or gpu-hours"
    )
    deadline_seconds: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="of the makespan; else refused"
    )
    queue: bool = Field(default=False, description="wait in the queue when no GPU is free")
    first_signal: bool = Field(
        default=False, description="a slice of every dataset first, to have rough scores early"
    )
    engine: EngineSettings = EngineSettings()
    stage: StageSettings = StageSettings()
    trial: TrialSettings = TrialSettings()
    metrics: MetricSettings = MetricSettings()
    supervisor: SupervisorSettings = SupervisorSettings()
    slurm: SlurmSettings = SlurmSettings()
    ray: RaySettings = RaySettings()


class Layer(Record):
    """Values by dotted name, and where they come from."""

    source: str
    values: dict[str, Any]


def names() -> list[str]:
    """Every setting by its dotted name, such as `slurm.partition`."""
    return list(flatten(Settings().model_dump()))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections as dotted names; the engine's `args` stay one value."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = prefix + key
        if isinstance(value, Mapping) and name in _SECTIONS:
            flat |= flatten(value, name + ".")
        else:
            flat[name] = value
    return flat


def meaning(name: str) -> str:
    """What a setting is, in a few words."""
    section, _, key = name.rpartition(".")
    model = _SECTIONS[section] if section else Settings
    return model.model_fields[key].description or ""


def file_layer(path: Path | None, environ: Mapping[str, str]) -> Layer:
    """The settings file: the one given, the one named by the environment, or the user's own.

    Raises:
        UserError: a file that was asked for is missing, or one is malformed.
    """
    asked = path or (Path(environ[FILE_VARIABLE]) if environ.get(FILE_VARIABLE) else None)
    file = asked or Path(platformdirs.user_config_dir("coordinate-eval")) / "config.toml"
    try:
        tree = tomllib.loads(file.read_text())
    except FileNotFoundError:
        if asked:
            raise UserError(f"settings file {file} does not exist") from None
        return Layer(source=str(file), values={})
    except (OSError, ValueError) as error:
        raise UserError(f"settings file {file} cannot be read: {error}") from error
    return Layer(source=str(file), values=flatten(tree))


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """Settings from environment variables."""
    values: dict[str, Any] = {}
    for name in names():
        variable = PREFIX + name.replace(".", "_").upper()
        if variable in environ:
            values[name] = _from_text(name, environ[variable])
    return Layer(source="environment", values=values)


def resolve(layers: list[Layer]) -> tuple[Settings, dict[str, str]]:
    """Settings of all layers, later ones winning, and the source of each that was set.

    Raises:
        UserError: a name is unknown or a value impossible; it names the source.
    """
    merged: dict[str, Any] = {}
    sources: dict[str, str] = {}
    known = set(names())
    for layer in layers:
        for name, value in layer.values.items():
            if name not in known:
                raise UserError(
                    f"unknown setting {name!r} in {layer.source}; "
                    "`coordinate-eval config` lists those there are"
                )
            merged[name] = value
            sources[name] = layer.source
    try:
        return Settings.model_validate(_nest(merged)), sources
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        source = sources.get(name, "the settings")
        raise UserError(f"setting {name} in {source}: {first['msg']}") from error


def load(flags: Mapping[str, Any], file: Path | None = None) -> tuple[Settings, dict[str, str]]:
    """The effective settings, and where each that is not a default comes from."""
    environ = os.environ
    given = {name: value for name, value in flags.items() if value is not None}
    return resolve(
        [
            file_layer(file, environ),
            environment_layer(environ),
            Layer(source="command line", values=given),
        ]
    )


def _nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        section, _, key = name.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[key] = value
    return tree


def _from_text(name: str, text: str) -> Any:  # noqa: ANN401 - any JSON value
    """A list, table, number or truth value given as JSON; everything else is the text itself."""
    section, _, key = name.rpartition(".")
    model = _SECTIONS[section] if section else Settings
    if model.model_fields[key].annotation in (str, str | None):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


_SECTIONS: dict[str, type[Record]] = {
    name: field.annotation
    for name, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Record)
}

"""Settings from defaults, a TOML file, the environment and flags; later sources win.

The environment variable of `[slurm] partition` is `COORDINATE_EVAL_SLURM_PARTITION`. Lists and
tables in the environment are JSON. A run keeps its settings in `run.json`.
"""

import difflib
import json
import os
import sys
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import ValidationError

from coordinate_eval import _format, _owner, _user_files
from coordinate_eval.clusters import protocol
from coordinate_eval.coordinator.inputs.settings import FOLDERS, Settings
from coordinate_eval.errors import UserError
from coordinate_eval.records import Record

PREFIX = "COORDINATE_EVAL_"
FILE_VARIABLE = "COORDINATE_EVAL_CONFIG"

_OWN_VARIABLES = {
    FILE_VARIABLE,
    protocol.INDEX_VARIABLE,
    protocol.TASK_VARIABLE,
    protocol.NODE_VARIABLE,
    protocol.STARTED_VARIABLE,
    protocol.LOG_VARIABLE,
    *protocol.ENDS_WITH_PARENT,
    *protocol.OF_TRAINING,
}
"""Variables with the prefix that are not settings."""

_FORMER: Mapping[str, str] = {
    "build.jobs": "harness.jobs",
    "build.memory_gib": "harness.memory_gib",
    "build.minutes": "",
    "diagnosis.api_key_env": "",
    "diagnosis.base_url": "",
    "diagnosis.model": "",
    "diagnosis.rules": "",
    "judge.max_tokens": "",
    "judge.requests_per_minute": "",
    "judge.timeout_seconds": "",
    "harness.dataset_minutes": "",
    "limits.jobs": "",
    "limits.newest_first": "",
    "local.cpus": "",
    "max_nodes": "nodes",
    "metrics.memory_gib": "",
    "metrics.scoring_minutes": "",
    "objective": "",
    "ray.cpus": "",
    "ray.gpu_memory_gib": "gpu_memory_gib",
    "ray.gpus": "local.gpus",
    "scoring.dataset_minutes": "",
    "scoring.jobs": "harness.jobs",
    "scoring.memory_gib": "harness.memory_gib",
    "slurm.exclude": "slurm.extra_args",
    "slurm.gpu_memory_gib": "gpu_memory_gib",
    "slurm.reader": "",
    "slurm.timeout_seconds": "",
    "slurm.wake_nodes": "",
    "slurm.whole_nodes": "",
    "stage.cpus": "",
    "stage.gigabits_per_node": "",
    "supervisor.cpus": "",
    "supervisor.memory_gib": "",
    "supervisor.minutes": "",
    "trial.avoid_minutes": "",
    "trial.engine_start_seconds": "",
    "trial.hang_factor": "",
    "trial.least_gain_seconds": "",
    "trial.min_minutes": "",
    "trial.time_limit_factor": "",
}
"""Settings of earlier versions, and what they are called now; empty if they are gone."""

_AS_NOW: Mapping[str, Callable[[Any], Any]] = {
    "max_nodes": str,
    "slurm.exclude": lambda nodes: [f"--exclude={nodes}"] if nodes else [],
}
"""Functions from the value of a former setting to that of its successor, where they differ."""

_FORMER_SECTIONS = {name.partition(".")[0] for name in _FORMER}


class Layer(Record):
    """Values by dotted name, from one source."""

    source: str
    values: dict[str, Any]


def names() -> list[str]:
    """Return the dotted names of all settings, such as `slurm.partition`."""
    return list(flatten(Settings().model_dump()))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested sections as dotted names; `engine.args` stays one value."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = prefix + key
        if isinstance(value, Mapping) and name in (*_SECTIONS, *_FORMER_SECTIONS):
            flat |= flatten(value, name + ".")
        else:
            flat[name] = value
    return flat


def meaning(name: str) -> str:
    """Return the description of a setting."""
    section, _, key = name.rpartition(".")
    model = _SECTIONS[section] if section else Settings
    return model.model_fields[key].description or ""


def file_layer(path: Path | None, environ: Mapping[str, str]) -> Layer:
    """Read the settings file: the given one, else the environment's, else the user's own.

    Raises:
        UserError: The file is malformed, or it was named and is missing.
    """
    named = path or (Path(environ[FILE_VARIABLE]) if environ.get(FILE_VARIABLE) else None)
    file = named or Path(platformdirs.user_config_dir("coordinate-eval")) / "config.toml"
    try:
        tree = tomllib.loads(_user_files.read_text(file, "settings file"))
    except UserError as error:
        if not named and isinstance(error.__cause__, FileNotFoundError):
            return Layer(source=str(file), values={})
        raise
    except ValueError as error:
        raise UserError(f"settings file {file} cannot be read: {error}") from error
    except RecursionError:
        raise UserError(f"settings file {file} cannot be read: it is nested too deeply") from None
    return Layer(source=str(file), values=flatten(tree))


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """Read settings from environment variables.

    Raises:
        UserError: A variable with this program's prefix is not a setting.
    """
    settings = {_variable(name): name for name in (*names(), *_FORMER)}
    values: dict[str, Any] = {}
    for variable in sorted(v for v in environ if v.startswith(PREFIX)):
        if variable in settings:
            values[settings[variable]] = _from_text(settings[variable], environ[variable])
        elif variable not in _OWN_VARIABLES:
            hint = _hint(variable, settings, "unset it")
            raise UserError(f"environment variable {variable} is not a setting: {hint}")
    return Layer(source="environment", values=values)


def _variable(name: str) -> str:
    return PREFIX + name.replace(".", "_").upper()


def resolve(layers: list[Layer]) -> tuple[Settings, dict[str, str]]:
    """Merge layers, later ones first; return the settings and the source of each set value.

    Raises:
        UserError: A name is unknown or a value is invalid; names the source.
    """
    merged, sources = _merged(layers)
    try:
        settings = Settings.model_validate(_nest(merged))
    except ValidationError as error:
        name = ".".join(str(part) for part in error.errors()[0]["loc"])
        source = sources.get(name, "the settings")
        raise UserError(f"setting {name} {_in(source)}: {_format.problem(error)}") from error
    for name in FOLDERS:
        try:
            Path(getattr(settings, name)).expanduser()
        except RuntimeError as error:
            source = sources.get(name, "the defaults")
            value = getattr(settings, name)
            raise UserError(f"setting {name} {_in(source)}: no home folder for {value}") from error
    settings = _with_absolute_paths(settings)
    for name, value in merged.items():
        if isinstance(value, str) and "\0" in value:
            raise UserError(f"setting {name} {_in(sources[name])}: it contains a NUL character")
        if not _is_json(value):
            raise UserError(
                f"setting {name} {_in(sources[name])}: JSON cannot hold it (a text that is not "
                "Unicode, NaN, a date), or it is nested too deeply"
            )
    return settings, sources


def _merged(layers: list[Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the last value of each setting, and its source.

    Raises:
        UserError: A name is unknown.
    """
    merged: dict[str, Any] = {}
    sources: dict[str, str] = {}
    known = sorted(names())
    for layer in layers:
        for given, value in layer.values.items():
            name = _FORMER.get(given, given)
            if not name or (given != name and name in layer.values):
                continue
            if name in _SECTIONS:
                raise UserError(f"setting {name} {_in(layer.source)} {_as_section(name, value)}")
            if name not in known:
                otherwise = "remove it; then `coordinate-eval config` lists all settings"
                hint = _hint(name, known, otherwise)
                raise UserError(f"unknown setting {name!r} {_in(layer.source)}; {hint}")
            merged[name] = _AS_NOW.get(given, lambda same: same)(value)
            sources[name] = layer.source
    return merged, sources


def _as_section(name: str, value: object) -> str:
    """Return how a section is written in place of the value that was given for it."""
    model = _SECTIONS[name]
    plain = {
        key: field.default
        for key, field in model.model_fields.items()
        if isinstance(field.default, str | int | float)
    }
    first, usual = next(iter((plain or dict.fromkeys(model.model_fields, "")).items()))
    try:
        model.model_validate({first: value})
    except ValidationError:
        value = usual
    return (
        f"is a section and no value. Write [{name}] on a line of its own, below all settings "
        f"outside of sections, and its settings below that, such as: {first} = {json.dumps(value)}"
    )


def _hint(unknown: str, known: Collection[str], otherwise: str) -> str:
    """Return what to do about an unknown name."""
    own = unknown.rpartition(".")[2]
    if own != unknown and own in known:
        return f"{own} is a setting outside of sections: write it above the first [section]"
    near = difflib.get_close_matches(unknown, known, n=1)
    return f"did you mean {near[0]}?" if near else otherwise


def _with_absolute_paths(settings: Settings) -> Settings:
    """Return settings for jobs, which work in another folder than the command."""
    folders = {name: getattr(settings, name) for name in FOLDERS}
    absolute: dict[str, Any] = {
        name: str(Path(folder).absolute())
        for name, folder in folders.items()
        if not folder.startswith("~")
    }
    judge = settings.judge
    if judge.baseline:
        baseline = str(Path(judge.baseline).absolute())
        absolute["judge"] = judge.model_copy(update={"baseline": baseline})
    chosen = settings.container
    images = {kind: _absolute_image(image) for kind, image in chosen.images.items()}
    named = {"image": _absolute_image(chosen.image), "images": images}
    # What nobody has set stays unset: a request leaves it to who submits it.
    if update := {name: named[name] for name in chosen.model_fields_set & named.keys()}:
        absolute["container"] = chosen.model_copy(update=update)
    return settings.model_copy(update=absolute)


def _absolute_image(image: str) -> str:
    """Return an image that is named as a path by its absolute path, any other as it is."""
    if not image.startswith(("~", "./", "../")):
        return image
    return str(Path(image).expanduser().resolve())


def _in(source: str) -> str:
    """Return a source with the words that lead to it."""
    return {"command line": "on the command line", "environment": "in the environment"}.get(
        source, f"in {source}"
    )


def _is_json(value: object) -> bool:
    """Return whether a value reads back unchanged from JSON, such as `run.json`."""
    layer = Layer(source="", values={"": value})
    try:
        return Layer.model_validate_json(layer.model_dump_json()) == layer
    except (ValueError, RecursionError):
        return False


def load(flags: Mapping[str, Any], file: Path | None = None) -> tuple[Settings, dict[str, str]]:
    """Return the effective settings, and the source of each that is not a default.

    From then on the users that they trust are trusted. Settings of earlier versions are named on
    stderr, so that an update stops no evaluation that cron or a training job starts.
    """
    environ = os.environ
    given = {name: value for name, value in flags.items() if value is not None}
    ray = {"ray.address": "auto"} if environ.get("RAY_ADDRESS") else {}
    layers = [
        Layer(source="RAY_ADDRESS", values=ray),
        file_layer(file, environ),
        environment_layer(environ),
        Layer(source="command line", values=given),
    ]
    settings, sources = resolve(layers)
    for line in former(layers):
        sys.stderr.write(_format.visible(line) + "\n")
    _owner.trust(settings.trusted_users)
    return settings, sources


def former(layers: Sequence[Layer]) -> Iterator[str]:
    """Yield what became of each setting of an earlier version, in words for a person."""
    for layer in layers:
        for name in layer.values:
            if (now := _FORMER.get(name)) is not None:
                does = f"is called {now} now" if now else "is gone and has no effect: remove it"
                yield f"setting {name} {_in(layer.source)} {does}"


def _nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        section, _, key = name.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[key] = value
    return tree


def _from_text(name: str, text: str) -> Any:  # noqa: ANN401 - any JSON value
    """Parse a variable as JSON (a list, table, number or boolean), else return the text."""
    section, _, key = (_FORMER.get(name, name) or name).rpartition(".")
    model = _SECTIONS.get(section, Settings)
    field = model.model_fields.get(key)
    if field is not None and field.annotation in (str, str | None):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


_SECTIONS: dict[str, type[Record]] = {
    name: field.annotation
    for name, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Record)
}

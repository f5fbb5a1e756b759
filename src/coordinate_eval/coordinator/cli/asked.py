"""What the options of a command ask for: the settings, and the part of a suite."""

from collections.abc import Sequence
from pathlib import Path

from coordinate_eval.coordinator.inputs import layers
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.inputs.suites.suite import load, narrow
from coordinate_eval.records import Suite

_SETTINGS = {
    "deadline": "deadline_seconds",
    "engine": "engine.name",
    "engine_args": "engine.args",
    "judge_url": "judge.base_url",
    "judge_model": "judge.model",
    "partition": "slurm.partition",
    "account": "slurm.account",
    "qos": "slurm.qos",
    "reservation": "slurm.reservation",
    "constraint": "slurm.constraint",
}
"""Options whose settings have other names."""


def asked(
    settings_file: Path | None,
    *,
    only: Sequence[str] | None,
    skip: Sequence[str] | None,
    group: Sequence[str] | None,
    limit: int | None,
    **flags: object,
) -> tuple[Settings, Suite]:
    """Return the settings with these flags, those that are None left out, and the suite.

    Raises:
        UserError: a setting or the suite is wrong.
    """
    named = {_SETTINGS.get(option, option): value for option, value in flags.items()}
    settings, _ = layers.load(named, settings_file)
    suite = narrow(
        load(settings.suite), only=only or (), skip=skip or (), groups=group or (), limit=limit
    )
    return settings, suite

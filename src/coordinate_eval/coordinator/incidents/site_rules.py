"""The rules that name causes: a site's own, those that a user confirmed, and the shipped."""

from pathlib import Path

import platformdirs

from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.own import is_own
from coordinate_eval.diagnosis.rules import Rules, merged, read_site, with_site


def rules_file(settings: Settings) -> Path:
    """Return the path of the user's own rules, which need not be there."""
    if settings.diagnosis.rules:
        return Path(settings.diagnosis.rules).expanduser()
    return _config_folder() / "diagnosis.yaml"


def learned_file(settings: Settings) -> Path:
    """Return the path of the rules that a model proposed and the user confirmed.

    They lie beside the user's rules if that folder is the user's own: a site's may be root's.
    """
    folder = rules_file(settings).parent
    if not is_own(folder.resolve()):
        folder = _config_folder()
    return folder / "diagnosis-learned.yaml"


def read_rules(settings: Settings) -> Rules:
    """Return all rules, in their order.

    Raises:
        UserError: a file of rules cannot be used.
    """
    own, learned = read_site(rules_file(settings)), read_site(learned_file(settings))
    return with_site(merged(own, learned))


def _config_folder() -> Path:
    return Path(platformdirs.user_config_dir("coordinate-eval"))

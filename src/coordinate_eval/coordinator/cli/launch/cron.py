"""`coordinate-eval watch --cron`: a line for `crontab -e`, and the file that it runs.

Cron starts with a short PATH, no shell profile and another folder. It cuts long lines, gives % a
meaning, and everybody can read the processes that it starts. So the line names a file, which only
the user can read: a script for bash that sets what jobs inherit, and looks once. Values in it may
be secret, have several lines, or be shell functions such as `module`.
"""

import base64
import hashlib
import json
import os
import re
import shlex
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from coordinate_eval import _files, _owner
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.jobs import program
from coordinate_eval.coordinator.run.own import place
from coordinate_eval.errors import ForeignError, UserError
from coordinate_eval.slurm.environment import TOKEN, of_job

_SECRETS = ("TOKEN", "KEY", "SECRET", "PASSWORD", TOKEN)
"""Ends of the names of variables whose values are secret."""

_PASSWORD = re.compile(r"://[^/@]*:[^/@]*@")
"""A password in an address, such as that of a proxy."""

_OF_RAY = "RAY_*"
"""Variables that say where a Ray cluster is, and how to connect."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FUNCTION = re.compile(r"BASH_FUNC_([A-Za-z_][A-Za-z0-9_.:+@-]*)(?:%%|\(\))")
"""The variable in which bash hands a function to its children: its name in newer and older ones."""

_OF_BASH = {"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"}
"""Variables that bash lets nobody set."""


@dataclass(frozen=True)
class CronJob:
    """A line of a crontab, and the script that it runs."""

    line: str
    path: Path
    script: str
    secrets: tuple[str, ...]
    """Variables in the script whose values are secret."""
    notes: tuple[str, ...] = ()
    """Notes for the user."""

    def write(self) -> None:
        """Write the script, for the user's eyes only."""
        try:
            _files.own_folder(self.path.parent)
            _check_above(self.path.parent)
            _files.write_private(self.path, self.script)
        except OSError as error:
            raise UserError(f"{self.path} cannot be written: {error.strerror}") from error


def cron_job(
    folder: Path | None, argv: Sequence[str], every_seconds: float, settings: Settings
) -> CronJob:
    """Return the job of cron that looks once each time, with this process's environment."""
    there = None if folder is None else folder.absolute()
    words = [str(there) if word == str(folder) else word for word in argv]
    words = [word for word in words if word not in ("--cron", "--once")]
    log = place(Path(settings.runs_dir).expanduser().absolute(), "watch.log")
    if not any(word.split("=")[0] == "--log" for word in words):
        words += ["--log", str(log)]
    command = [*program(sys.executable), "watch", *words, "--once"]
    keys = [name for name in (settings.judge.api_key_env, settings.alarm_webhook_env) if name]
    more = (*settings.slurm.environment, _OF_RAY)
    kept = of_job(os.environ, more, keys)
    here = str(Path.cwd())
    digest = hashlib.sha256("\0".join([here, *words]).encode(errors="surrogateescape"))
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", there.name if there else "requests").strip("-.")[-40:]
    home = Path(platformdirs.user_config_dir("coordinate-eval")).absolute()
    path = home / "cron" / f"{name or 'watch'}-{digest.hexdigest()[:8]}.sh"
    minutes = max(1, round(every_seconds / 60))
    hours = minutes // 60
    when = f"*/{minutes} *" if not hours else f"0 */{hours}" if hours < 24 else "0 0"
    bash = shutil.which("bash", path="/bin:/usr/bin:/usr/local/bin") or shutil.which("bash")
    line = shlex.join([bash or "/bin/bash", str(path)])
    if not line.isprintable():
        raise UserError(f"a crontab cannot name {str(path)!r}: set XDG_CONFIG_HOME")
    return CronJob(
        line=f"{when} * * * {line}".replace("%", r"\%"),
        path=path,
        script=_script(kept, here, command),
        secrets=tuple(
            name
            for name, value in sorted(kept.items())
            if value and (name in keys or name.endswith(_SECRETS) or _PASSWORD.search(value))
        ),
        notes=tuple(_notes(kept)),
    )


def _check_above(folder: Path) -> None:
    """Check that nobody can put another folder in the place of this one: bash would not look."""
    for above in folder.resolve().parents:
        status = above.stat()
        fixed = not status.st_mode & 0o022 or status.st_mode & stat.S_ISVTX
        if not fixed and (why := _owner.foreign(status, above, roots=True)):
            raise ForeignError(
                f"cron would run {folder}, which can be replaced: {above} is not yours alone: "
                f"{why}. Have it changed (chmod go-w), or set XDG_CONFIG_HOME to a closed folder"
            )


def _script(variables: Mapping[str, str], folder: str, command: Iterable[str]) -> str:
    """Return the text of a script for bash that runs a command in a folder with these variables.

    Functions come last, since one may be called like a command of the script. What bash cannot
    read of one, such as in a newer one's syntax, leaves out that function only.
    """
    lines = [
        "# What cron runs. `coordinate-eval watch` with these options and --cron writes it anew.",
        "# It has your environment, perhaps with keys: keep it closed to others.",
    ]
    functions = []
    for name, value in sorted(variables.items()):
        if (found := _FUNCTION.fullmatch(name)) and value.startswith("() {"):
            text = shlex.quote(f"{found[1]} {value}")
            functions.append(f"builtin eval {text} && builtin export -f {found[1]}")
        elif _VARIABLE.fullmatch(name) and name not in _OF_BASH:
            lines.append(f"export {name}={shlex.quote(value)}")
    lines.append(f"cd {shlex.quote(folder)} || exit")
    lines.append("shopt -s extglob")
    return "\n".join([*lines, *functions, f"builtin exec {shlex.join(command)}"]) + "\n"


def _notes(variables: Mapping[str, str]) -> Iterable[str]:
    """Yield what the user should know of the variables that are kept."""
    ends = _end_of_token(variables.get(TOKEN, ""))
    if TOKEN in variables:
        until = time.strftime(" on %Y-%m-%d at %H:%M", time.localtime(ends)) if ends else ""
        yield (
            f"{TOKEN} ends{until}: have the file written again with another one before. If Slurm's "
            "commands work without it, unset it first"
        )


def _end_of_token(token: str) -> float:
    """Return the time at which a JSON web token ends, 0 if it does not tell."""
    try:
        payload = token.split(".")[1]
        content = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
        return float(json.loads(content)["exp"])
    except (ValueError, LookupError, TypeError):
        return 0.0

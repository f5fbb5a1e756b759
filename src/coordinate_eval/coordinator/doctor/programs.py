"""The programs that a run needs, each imported in a child process: none may harm the command."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from coordinate_eval import __version__
from coordinate_eval._engines import ENGINES
from coordinate_eval._format import brief
from coordinate_eval.coordinator.doctor.findings import Finding, Role, failure, ok, warning
from coordinate_eval.coordinator.inputs.settings import Settings

IMPORT_SECONDS = 240.0
"""Time for an import: from a busy file system, torch and vLLM have taken minutes."""

_HARNESS = "import lm_eval; said = {'version': lm_eval.__version__}"
_GPUS = """
import torch
here = torch.cuda.device_count() if torch.cuda.is_available() else 0
said = {
    'version': package.__version__,
    'gpus': [torch.cuda.get_device_name(each) for each in range(here)],
    'for_gpus': bool(torch.version.cuda or torch.version.hip),
}
"""
_EXTRAS = {**{name: name for name in ENGINES}, "lm_eval": "harness"}


@dataclass(frozen=True)
class Imported:
    """A child process's report on its imports."""

    said: Mapping[str, Any]
    error: str = ""
    missing: str = ""
    """The module that is not installed, if that is the error."""


def imported(code: str, seconds: float = IMPORT_SECONDS) -> Imported:
    """Run code in a child process of this Python; return the dict that it has left as `said`."""
    program = f"{code}\nimport json\nprint('\\n' + json.dumps(said))\n"
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", program],
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Imported({}, f"its import did not end within {seconds:g} s")
    if done.returncode == 0:
        reply = done.stdout.strip().rpartition("\n")[2]
        try:
            said = json.loads(reply)
        except ValueError:
            said = None
        if isinstance(said, dict) and said:
            return Imported(said)
        return Imported({}, f"its import ended well, but printed {brief(reply)!r} last")
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    last = brief(lines[-1]) if lines else f"exit status {done.returncode} without a message"
    start = "ModuleNotFoundError: No module named "
    missing = last.removeprefix(start).strip("'") if last.startswith(start) else ""
    return Imported({}, last, missing)


def python() -> Finding:
    """Return which program this is; jobs are started by the same path."""
    version = ".".join(map(str, sys.version_info[:3]))
    return ok("program", f"coordinate-eval {__version__}, Python {version}: {sys.executable}")


def harness() -> Finding:
    """Import the harness."""
    return finding_of("harness", imported(_HARNESS), Role.MACHINE)


def engine(settings: Settings, role: Role) -> Iterator[Finding]:
    """Import the engine, and see which GPUs it sees."""
    name = settings.engine.name
    if packages := ENGINES[name].packages:
        found = imported(f"import {', '.join(packages)} as package\n{_GPUS}")
        yield finding_of(f"engine {name}", found, role)
        if found.said and role is not Role.LOGIN:
            yield gpus(found.said)


def finding_of(check: str, found: Imported, role: Role) -> Finding:
    """Return the finding that follows from an import at a place with this role."""
    if found.said:
        return ok(check, f"{found.said['version']} can be imported")
    if found.missing:
        package = found.missing.partition(".")[0]
        extra = _EXTRAS.get(package)
        do = f"pip install '{f'coordinate-eval[{extra}]' if extra else package}'"
        return failure(check, f"{found.missing} is not installed for {sys.executable}", do)
    if role is Role.LOGIN:
        do = "this may be so because there is no GPU here: --submit asks a job with one"
        return warning(check, found.error, do)
    return failure(check, found.error, "mend its installation: it must import in a plain Python")


def gpus(said: Mapping[str, Any]) -> Finding:
    """Return which GPUs an engine sees."""
    if names := said["gpus"]:
        kinds = {name: names.count(name) for name in names}
        return ok("GPUs", ", ".join(f"{count} × {brief(name)}" for name, count in kinds.items()))
    if not said["for_gpus"]:
        return warning(
            "GPUs",
            "this build of torch is for CPUs",
            "install one for the nodes' GPUs, to use them",
        )
    return failure(
        "GPUs",
        "the engine sees none",
        "try `nvidia-smi` (or `rocm-smi`) in the same job; if it sees one, the driver is older "
        "than torch's CUDA; if not, look at gres.conf and ConstrainDevices",
    )

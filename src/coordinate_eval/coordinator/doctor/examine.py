"""All checks of one place, in the order in which a person would look.

Those of its programs, of its sandbox and compilers, and of what it reaches are here.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from coordinate_eval import __version__
from coordinate_eval._engines import ENGINES
from coordinate_eval._format import brief
from coordinate_eval.clusters.containers import WITH_ENGINE, Kind
from coordinate_eval.clusters.protocol import Cluster
from coordinate_eval.coordinator.doctor import folders, scheduler
from coordinate_eval.coordinator.doctor.findings import KIND, Finding, Role, failure, ok, warning
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run import containers
from coordinate_eval.errors import EngineError, UserError

ANSWER_SECONDS = 10.0
"""Time for a server to answer."""

_HUB = "https://huggingface.co"
_USER = re.compile(r"(?<=//)[^?#]*@")
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")


def sandbox() -> Finding:
    """Confine a program, at the strongest level that works here."""
    from coordinate_eval.evaluators.sandbox.sandbox import Sandbox

    try:
        level = Sandbox.probe().level
    except UserError as error:
        return warning(
            "sandbox",
            "programs that a model wrote cannot be confined: datasets that run them get no scores",
            str(error),
        )
    return ok("sandbox", f"programs are confined by {level}")


def compilers() -> Finding:
    """Look for what compiles and runs programs in other languages than Python."""
    from coordinate_eval.evaluators.sandbox.toolchains import LANGUAGES, missing_packages

    there = [language.title for name, language in LANGUAGES.items() if not missing_packages([name])]
    missing = missing_packages(LANGUAGES)
    if missing:
        lacking = [language.title for language in LANGUAGES.values() if language.title not in there]
        return warning(
            "compilers",
            f"no programs in {', '.join(lacking)}: datasets that run them get no scores",
            f"install on all nodes of metric jobs: apt-get install {' '.join(missing)}",
        )
    return ok("compilers", f"programs in {', '.join(there)} can be run")


def supervisor(settings: Settings) -> Finding:
    """Look whether a supervisor can submit jobs from this node, where it is a job itself."""
    if settings.slurm.supervisor == "login":
        return ok("supervisor", "it is a process of a login node")
    if why := clusters.why_not_from_here(clusters.DESCRIBED):
        return warning(
            "supervisor",
            f"{why}, and runs wait for `coordinate-eval watch` on a login node",
            "set [slurm] supervisor to login, and have cron call what `watch --cron` prints",
        )
    return ok("supervisor", "there is an sbatch for it")


def network(settings: Settings, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Ask the hub for an answer, and the judge's server if there is one."""
    offline = next((name for name in _OFFLINE if environ.get(name) == "1"), "")
    if offline:
        yield ok("hub", f"not asked, because {offline} is 1: prompts come from the cache")
    else:
        hub = environ.get("HF_ENDPOINT") or _HUB
        yield _reached(
            "hub", hub, "run `coordinate-eval prefetch CKPT` where there is a network; then runs "
            "need none",
        )  # fmt: skip
    if settings.judge.base_url:
        models = settings.judge.base_url.rstrip("/") + "/models"
        yield _reached(
            "judge", models, "start the judge, or correct [judge] base_url; a run whose judge is "
            "away can be resumed",
        )  # fmt: skip


def _reached(check: str, url: str, do: str) -> Finding:
    """Return whether a server gives any answer. A password in its address is not shown."""
    import httpx

    name = _USER.sub("", url)
    try:
        status = httpx.head(url, timeout=ANSWER_SECONDS).status_code
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        return warning(
            check, f"{name} gives no answer ({brief(error) or type(error).__name__})", do
        )
    if status >= 500:
        return warning(check, f"{name} answers with status {status}", do)
    return ok(check, f"{name} answers")


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


def container(settings: Settings, kind: Kind) -> Iterator[Finding]:
    """Return what a job in a container finds of it. That it runs says that the image is fit."""
    chosen = settings.container
    stage = f", {settings.stage.folder} is the node's" if kind in WITH_ENGINE else ""
    yield ok(
        "container",
        f"image {chosen.image_of(kind)} ({chosen.runtime.split()[0]}): "
        f"pydantic {version('pydantic')}{stage}",
    )
    missing = [m.target for m in chosen.mounted if not Path(m.target).expanduser().exists()]
    if missing:
        yield failure(
            "mounts",
            f"not in the container: {', '.join(missing)}",
            "have the command in [container] runtime mount them: {mounts} is there for it",
        )
    elif chosen.mounts:
        yield ok("mounts", ", ".join(chosen.mounts))


def container_here(settings: Settings, cluster: str) -> Iterator[Finding]:
    """Look whether what the settings say of containers is there, where the command is called."""
    chosen = settings.container
    if not chosen.runtime:
        return
    try:
        containers.check(settings, cluster)
    except UserError as error:
        yield failure("container", str(error), "correct the setting that is named")
    else:
        images = dict.fromkeys(filter(None, (chosen.image, *chosen.images.values())))
        yield ok("container", f"{chosen.runtime}, image {', '.join(images)}")


def engine(settings: Settings, role: Role) -> Iterator[Finding]:
    """Import the engine, and see which GPUs it sees."""
    name = settings.engine.name
    if packages := ENGINES[name].packages:
        found = imported(f"import {', '.join(packages)} as package\n{_GPUS}")
        yield finding_of(f"engine {name}", found, role)
        if found.said and role is not Role.LOGIN:
            yield gpus(found.said)
    if name == "server":
        yield server(settings, role)


def server(settings: Settings, role: Role) -> Finding:
    """Look for the server that is the engine: at its address, or for its program."""
    from coordinate_eval.evaluators.engines import server as engine_server

    args, check = settings.engine.args, "engine server"
    try:
        engine_server.check_args(args)
        if not settings.engine.elsewhere:
            program = engine_server.program(args)
            if shutil.which(program):
                return ok(check, f"{program} can be started")
            why = f"{program} is no program here"
            if role is Role.LOGIN:
                return warning(check, why, "--submit asks a job whether nodes have it")
            return failure(check, why, "give [engine.args] command a path that nodes have")
        name = engine_server.look(args, os.environ)
        return ok(check, f"{args['base_url']} has the model {brief(name) or 'of no name'}")
    except UserError as error:
        return failure(check, str(error), "mend [engine.args]")
    except EngineError as error:
        return warning(check, str(error), "start it, or see whether it can be reached from here")


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


def examine(settings: Settings, role: Role) -> Iterator[Finding]:
    """Yield what is found on this machine, as it is found."""
    number = ".".join(map(str, sys.version_info[:3]))
    yield ok("program", f"coordinate-eval {__version__}, Python {number}: {sys.executable}")
    if role in KIND and settings.container.image_of(KIND[role]) is not None:
        yield from container(settings, KIND[role])
        yield from folders.of_settings(settings, ("cache_dir", "runs_dir"))
    else:
        yield from folders.of_settings(settings)
    if role is not Role.GPU_JOB:
        yield folders.hub_cache(os.environ)
        yield finding_of("harness", imported(_HARNESS), Role.MACHINE)
        yield sandbox()
        yield compilers()
        yield from network(settings)
    if role is Role.CPU_JOB and "SLURM_JOB_ID" in os.environ:
        yield supervisor(settings)
    if role is not Role.CPU_JOB:
        yield from folders.stage(settings, role)
        image = settings.container.image_of("trial")
        if image is None or role is Role.GPU_JOB:
            yield from engine(settings, role)
        else:
            where = f"in image {image}, which --submit looks into"
            yield ok(f"engine {settings.engine.name}", where)


def examine_here(settings: Settings, cluster: Cluster | None) -> Iterator[Finding]:
    """Yield what is found where the command is called, what the scheduler says first."""
    if cluster is None:
        yield scheduler.of_file(Path(settings.cluster))
        yield from examine(settings, Role.LOGIN)
    elif cluster.local:
        yield from container_here(settings, cluster.name)
        yield from examine(settings, Role.MACHINE)
    else:
        yield from scheduler.of_cluster(cluster)
        yield from container_here(settings, cluster.name)
        yield from examine(settings, Role.LOGIN)

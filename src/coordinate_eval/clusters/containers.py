"""A job's command inside a container. Nothing here runs a command.

`contained` turns the argv of what one task runs into the argv that runs it in a container of
pyxis, Apptainer, podman, or a command of the site's own. The image needs nothing of this program:
its package is mounted, and the Python and the packages of the image run it (`_in_image.py`).

What the submitter's Python and libraries are told is kept from the image's: variables of
`_OF_HOST` end before the container. All other variables of a job are the container's too, where
the image does not set them itself.
"""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from coordinate_eval import _gpus, _in_image
from coordinate_eval.errors import UserError
from coordinate_eval.records import Record

Kind = Literal["trial", "judge", "build", "metric", "score"]
"""Kinds of jobs that can run in a container. Keepers are part of `trial`."""

WITH_ENGINE: tuple[Kind, ...] = ("trial", "judge")
"""The kinds of jobs that `image` is for."""

RUNTIMES = ("pyxis", "apptainer", "podman")

PURE = ("jinja2", "markupsafe", "platformdirs", "yaml")
"""Packages that our own needs besides those of an engine, mounted for images that lack them.

They run on any Python: what two of them have compiled is for speed. All others are the image's own:
pydantic has a compiled part for one version of Python.
"""

_OF_HOST = (
    *("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONSTARTUP", "PYTHONPYCACHEPREFIX"),
    *("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "CPATH", "CC", "CXX", "BASH_ENV"),
    *("CUDA_HOME", "CUDA_PATH", "ROCM_HOME", "ROCM_PATH"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
)
"""Variables that name files of the host, or what its Python and linker load."""

# CDI names each GPU by the node's own number, which only a process on the node knows.
_WITH_CDI = (
    'for gpu in $(echo "${SLURM_STEP_GPUS:-${SLURM_JOB_GPUS:-$CUDA_VISIBLE_DEVICES}}" | tr , " "); '
    'do set -- "--device=nvidia.com/gpu=$gpu" "$@"; done; exec podman run "$@"'
)

WITHOUT_SLURM = ("env", "--unset=SLURM_STEP_GPUS", "--unset=SLURM_JOB_GPUS")
"""Launcher of a task whose GPUs another scheduler chose, perhaps of those of a job of Slurm."""


class Mount(Record):
    """A file or folder of the node, and its place in the container."""

    source: str
    target: str
    read_only: bool = False


def _mount(given: str) -> Mount:
    source, _, rest = given.partition(":")
    target, _, mode = rest.partition(":")
    if not source.startswith(("/", "~")) or (target and not target.startswith("/")):
        raise ValueError(f"{given!r} must have absolute paths, as SOURCE, or SOURCE:TARGET")
    if mode not in ("", "ro", "rw"):
        raise ValueError(f"{given!r} must end with :ro or :rw, or neither")
    return Mount(source=source, target=target or source, read_only=mode == "ro")


def packages() -> tuple[Mount, ...]:
    """Return the mounts of our package, and of those that are for images without them."""
    modules = {name: find_spec(name) for name in ("coordinate_eval", *PURE)}
    found = {name: Path(str(spec and spec.origin)).parent for name, spec in modules.items()}
    return tuple(
        Mount(
            source=str(folder),
            target="/".join(
                (_in_image.PACKAGES, name)
                if name not in PURE
                else (_in_image.PACKAGES, _in_image.MORE, name, name)
            ),
            read_only=True,
        )
        for name, folder in found.items()
    )


class ContainerSettings(Record):
    """The containers of jobs, on sites where engines are in images."""

    runtime: str = Field(
        default="",
        description="what starts containers: pyxis, apptainer, podman, or a command of your own "
        "such as `singularity exec {mounts} {image} {command}`; if not set, jobs run without",
    )
    image: str = Field(
        default="",
        description="image of jobs with an engine (trials, their keepers, a checkpoint that "
        "judges), as the runtime names it, such as /images/vllm.sif; a path must be there on this "
        "machine too",
    )
    images: dict[Kind, str] = Field(
        default={},
        description="other images by kind of job: trial, judge, build, metric, score; an empty one "
        "keeps the kind out of containers",
    )
    mounts: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="folders for jobs in containers beside those that a run needs, as SOURCE, "
        "SOURCE:TARGET or SOURCE:TARGET:ro; ~ mounts the home",
    )
    args: tuple[str, ...] = Field(
        default=(), description="more options of apptainer, podman, or of srun with pyxis"
    )

    @field_validator("runtime")
    @classmethod
    def _is_known(cls, given: str) -> str:
        if not given or given in RUNTIMES:
            return given
        try:
            words = shlex.split(given)
        except ValueError as error:
            raise ValueError(f"{given!r} cannot be read as a command: {error}") from error
        if "{command}" not in words:
            raise ValueError(
                f"{given!r} must be {', '.join(RUNTIMES)}, or a command with {{command}} as a word "
                "of its own"
            )
        known = {"mounts", "image", "command", "source", "target"}
        if unknown := set(re.findall(r"\{(\w*)\}", given)) - known:
            raise ValueError(f"{given!r} has {{{min(unknown)}}}, which is none of {sorted(known)}")
        return given

    @field_validator("mounts")
    @classmethod
    def _are_mounts(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for each in given:
            _mount(each)
        return given

    @model_validator(mode="after")
    def _is_whole(self) -> "ContainerSettings":
        named = [self.image, *self.images.values()]
        if self.runtime and not any(named) and "{image}" in (self.runtime + "{image}" * self.known):
            raise ValueError("runtime needs an image: set [container] image")
        if any(named) and not self.runtime:
            raise ValueError("image needs a runtime: set [container] runtime")
        if self.args and self.runtime and not self.known:
            raise ValueError("args must be empty with a command as runtime: write them in it")
        return self

    @property
    def known(self) -> bool:
        """Return whether the runtime is one that this program knows."""
        return self.runtime in RUNTIMES

    def image_of(self, kind: Kind) -> str | None:
        """Return the image of a kind of job; None if it runs without a container."""
        if not self.runtime or (kind in self.images and not self.images[kind]):
            return None
        if kind in self.images:
            return self.images[kind]
        return self.image if kind in WITH_ENGINE else None

    @property
    def mounted(self) -> tuple[Mount, ...]:
        """Return `mounts` as they are meant."""
        return tuple(map(_mount, self.mounts))


class Container(Record):
    """The container of a job."""

    runtime: str
    image: str
    mounts: tuple[Mount, ...] = ()
    args: tuple[str, ...] = ()
    needs: tuple[str, ...] = Field(
        default=(), description="modules that the image must have, such as pydantic>=2.12"
    )
    shared: str = Field(
        default="", description="folder that must be the node's own in all of its containers"
    )
    home: str = Field(default="", description="HOME in it; empty if it is mounted")
    of_root: bool = Field(default=False, description="the user is root, who is root in it too")


def contained(
    argv: tuple[str, ...],
    container: Container,
    *,
    gpus: int = 0,
    gpu_type: str = "",
    cpus: int = 1,
    folder: str = "/",
    launcher: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Return the argv that runs `argv` in a container.

    Args:
        argv: what one task runs: a Python, `-P -m coordinate_eval`, a command and its words.
        container: where.
        gpu_type: as the cluster spells it.
        launcher: what starts the tasks of a job that has several, such as `srun --ntasks=2`. Each
            task has a container of its own.

    Raises:
        UserError: the runtime cannot express a path.
    """
    amd = bool(gpus) and _gpus.is_amd(gpu_type)
    inside = _inside(argv, container, renumbered=gpus * (container.runtime == "podman" and not amd))
    hidden = tuple(f"--unset={name}" for name in _OF_HOST)
    match container.runtime:
        case "pyxis":
            one = ("srun", "--nodes=1", "--ntasks=1", f"--cpus-per-task={cpus}")
            words = (*(launcher or one), *_pyxis(container, folder), *inside)
            launcher = ()
        case "apptainer":
            words = (*_apptainer(container, gpus, amd=amd), *inside)
        case "podman":
            words = (*_podman(container, gpus, folder, amd=amd), *inside)
        case template:
            words = _from_template(template, container, inside)
    return (*launcher, "env", *hidden, *words)


def _inside(argv: tuple[str, ...], container: Container, renumbered: int) -> tuple[str, ...]:
    """Return what starts in the container; `renumbered` GPUs have numbers from 0 there."""
    facts = {
        "HOME": container.home,
        _in_image.IMAGE: container.image,
        _in_image.NEEDS: " ".join(container.needs),
        _in_image.SHARED: container.shared,
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(renumbered))),
    }
    words = (f"{name}={value}" for name, value in facts.items() if value)
    assert argv[1:4] == ("-P", "-m", "coordinate_eval"), argv
    return (
        "env",
        *words,
        "python3",
        f"{_in_image.PACKAGES}/coordinate_eval/_in_image.py",
        *argv[4:],
    )


def _pyxis(container: Container, folder: str) -> tuple[str, ...]:
    mounts = ",".join(
        ":".join((_for_pyxis(m.source), _for_pyxis(m.target), *(("ro",) if m.read_only else ())))
        for m in container.mounts
    )
    return (
        f"--container-image={container.image}",
        *((f"--container-mounts={mounts}",) if mounts else ()),
        f"--container-workdir={folder}",
        "--no-container-mount-home",
        "--no-container-remap-root",
        "--no-container-entrypoint",
        *container.args,
    )


_CHANGED_BY_PYXIS = frozenset(' \t\n,:"$`\\')
"""Characters at which pyxis splits a path, or that a shell of its own reads. Versions differ."""


def _for_pyxis(path: str) -> str:
    if _CHANGED_BY_PYXIS & set(path):
        raise UserError(
            f"[container] runtime pyxis cannot mount {path!r}: it has no way to write a path with "
            'spaces or one of , : " $ ` \\. Use a folder without'
        )
    return path


def _apptainer(container: Container, gpus: int, *, amd: bool) -> tuple[str, ...]:
    gpu_words = ("--rocm" if amd else "--nv",) if gpus else ()
    return (
        *("apptainer", "exec", "--no-home", *gpu_words),
        *(word for mount in container.mounts for word in ("--mount", _as_csv(mount))),
        *container.args,
        container.image,
    )


def _podman(container: Container, gpus: int, folder: str, *, amd: bool) -> tuple[str, ...]:
    start: tuple[str, ...] = ("podman", "run")
    if amd:
        start += ("--device=/dev/kfd", "--device=/dev/dri", "--group-add=keep-groups")
    elif gpus:
        start = ("sh", "-c", _WITH_CDI, "podman")
    return (
        *start,
        # The job's limits hold, and its end is the container's: no cgroup of podman's own.
        *("--rm", "--cgroups=disabled", "--network=host", "--ipc=host"),
        *(() if container.of_root else ("--userns=keep-id",)),
        *("--security-opt=label=disable", "--env-host", "--entrypoint=", f"--workdir={folder}"),
        *(word for mount in container.mounts for word in ("--mount", _as_csv(mount))),
        *container.args,
        container.image,
    )


def _as_csv(mount: Mount) -> str:
    """Return a mount as Apptainer and podman read it: fields of CSV, which hold any path."""
    fields = ["type=bind", f"source={mount.source}", f"destination={mount.target}"]
    if mount.read_only:
        fields.append("ro")
    return ",".join(
        '"' + field.replace('"', '""') + '"' if set(field) & set(',"\r\n') else field
        for field in fields
    )


def _from_template(template: str, container: Container, inside: tuple[str, ...]) -> tuple[str, ...]:
    """Return a site's own command: a word with `{source}` is repeated for each mount."""
    words: list[str] = []
    for word in shlex.split(template):
        if word == "{command}":
            words += inside
        elif word == "{mounts}":
            for mount in container.mounts:
                end = ":ro" if mount.read_only else ""
                words += ("--bind", f"{mount.source}:{mount.target}{end}")
        elif "{source}" in word or "{target}" in word:
            words += (
                word.replace("{source}", mount.source).replace("{target}", mount.target)
                for mount in container.mounts
            )
        else:
            words.append(word.replace("{image}", container.image))
    return tuple(words)

"""The containers of a run's jobs: which image, and what of the node is in it."""

import contextlib
import itertools
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from coordinate_eval._engines import kind_of
from coordinate_eval.clusters.containers import (
    WITH_ENGINE,
    Container,
    Kind,
    Mount,
    contained,
    packages,
)
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.checkpoints import store
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.errors import UserError

_NEEDS = "pydantic>=2.12"
"""Packages that every job imports, compiled for one version of Python. As in `pyproject.toml`."""

_OF_KIND: dict[Kind, tuple[str, ...]] = {
    "judge": ("httpx",),
    "build": ("lm_eval>=0.4.13", "httpx"),
    "score": ("lm_eval>=0.4.13", "httpx"),
}
"""Packages that some jobs import besides an engine."""


def check(settings: Settings, cluster: str) -> None:
    """Check what is known of the containers of the settings before a job is submitted.

    Raises:
        UserError: an image or a folder is not there, or the cluster cannot start the containers.
    """
    chosen = settings.container
    if chosen.runtime == "pyxis" and cluster != "slurm":
        raise UserError(
            "setting container.runtime: pyxis is a plugin of Slurm, and the cluster here is "
            f"{cluster}: use apptainer, podman, or a command of your own"
        )
    if chosen.runtime and cluster == "local":
        program = chosen.runtime if chosen.known else shlex.split(chosen.runtime)[0]
        if shutil.which(program) is None:
            raise UserError(
                f"setting container.runtime: {program} is not installed on this machine: install "
                "it, or unset the setting to run jobs without a container"
            )
    images = {"image": chosen.image, **{f"images.{k}": i for k, i in chosen.images.items()}}
    for name, image in images.items() if chosen.runtime else ():
        # Others are names in a registry.
        if image.startswith("/") and not os.access(image, os.R_OK):
            how = "cannot be read" if Path(image).exists() else "is not there"
            raise UserError(
                f"setting container.{name}: {image} {how} on {os.uname().nodename}: correct the "
                f"path, or its rights. {_ONLY_NODES}"
            )
    for mount in map(_expanded, chosen.mounted if chosen.runtime else ()):
        if not Path(mount.source).exists():
            raise UserError(
                f"setting container.mounts: {mount.source} is not there on "
                f"{os.uname().nodename}: correct the path, or take it out. {_ONLY_NODES}"
            )


_ONLY_NODES = (
    "What only nodes have is written into [container] args, or into a command as [container] "
    "runtime, which this program leaves alone"
)


def container_of(run: Run, run_dir: RunDir, kind: Kind) -> Container | None:
    """Return the container of a run's jobs of this kind; None if they run on the node itself."""
    settings, checkpoint = run.settings, run.checkpoint
    if settings.container.image_of(kind) is None:
        return None
    read = [name for name in (checkpoint.path, *checkpoint.all_files) if name.startswith("/")]
    read.append(str(run.lease))
    if kind in ("build", "score"):  # they run tasks
        read += [*run.suite.include_path, *filter(None, [run.folder])]
    if settings.judge.checkpoint and kind == "judge":
        judge = Path(settings.judge.checkpoint)
        read += [str(judge), *(map(str, judge.iterdir()) if judge.is_dir() else ())]
        with contextlib.suppress(UserError):  # its job says what is wrong
            read += checkpoints.inspect(judge).all_files
    read += filter(None, [settings.judge.baseline])
    made = container(settings, kind, [run_dir.root], read, run_dir.home)
    if made is None or kind != "trial":
        return made
    stores = sorted({each for name in checkpoint.all_files for each in store.packages(name)})
    return made.model_copy(update={"needs": (*made.needs, *stores)})


def check_paths(run: Run, run_dir: RunDir) -> None:
    """Check that the runtime can mount what trials of a run need.

    Raises:
        UserError: it has no way to write a path.
    """
    if (made := container_of(run, run_dir, "trial")) is not None:
        contained(("python3", "-P", "-m", "coordinate_eval"), made)


def container(
    settings: Settings, kind: Kind, written: Iterable[Path], read: Iterable[str], home: Path
) -> Container | None:
    """Return the container of a kind of job; None if it runs on the node itself.

    Args:
        settings: which kinds have one.
        written: folders that it writes in besides those of the settings.
        read: files and folders that it reads, if they are there, and what links lead to.
        home: HOME in it, unless the user has it mounted.
    """
    chosen = settings.container
    image = chosen.image_of(kind)
    if image is None:
        return None
    stage = settings.stage.folder if kind in WITH_ENGINE else ""
    folders = [*map(str, written), str(Path(settings.cache_dir).expanduser()), stage]
    mounts = [
        *(_expanded(mount) for mount in chosen.mounted),
        *itertools.chain.from_iterable(_with_real(path) for path in folders if path),
        *(
            mount.model_copy(update={"read_only": True})
            for path in sorted({_folder(at) for each in read for at in _linked(Path(each))})
            for mount in _with_real(path)
        ),
    ]
    outside = Path("~").expanduser()
    own_home = any(outside.is_relative_to(mount.target) for mount in mounts)
    return Container(
        runtime=chosen.runtime,
        image=image,
        mounts=(*_needed(mounts), *packages()),
        args=chosen.args,
        needs=(
            _NEEDS,
            *(kind_of(settings.engine.name).needs if kind in WITH_ENGINE else ()),
            *_OF_KIND.get(kind, ()),
        ),
        shared=stage,
        home="" if own_home else str(home),
        of_root=os.geteuid() == 0,
    )


def _expanded(mount: Mount) -> Mount:
    """Return a user's mount, in which `~` is the home."""
    source, target = (str(Path(each).expanduser()) for each in (mount.source, mount.target))
    return Mount(source=source, target=target, read_only=mount.read_only)


def _linked(path: Path) -> Iterator[Path]:
    """Yield a path that is there and, for a file, each that its links lead to.

    A hub's cache has links in `snapshots` to its `blobs`, and a user may have links to those.
    """
    if not path.exists():
        return
    yield path
    while path.is_symlink() and path.is_file():
        path = path.parent / path.readlink()
        yield path


def _folder(path: Path) -> str:
    """Return the folder to mount for a path: a file that is replaced meanwhile has its folder's."""
    return str(path if path.is_dir() else path.parent)


def _with_real(path: str) -> list[Mount]:
    """Return the mounts with which a path leads to the same in a container, links in it or none."""
    real = str(Path(path).resolve())
    named = os.path.normpath(path)  # as it is in a container, whose folders are no links
    return [Mount(source=real, target=each) for each in dict.fromkeys((real, named))]


def _needed(mounts: list[Mount]) -> list[Mount]:
    """Return mounts, outer ones first, without those that another one has in it already.

    What two of them have at the same place, the first one has.
    """
    kept: list[Mount] = []
    first = {mount.target: mount for mount in reversed(mounts)}
    for mount in sorted(first.values(), key=lambda each: Path(each.target).parts):
        inside = (
            Path(mount.target).is_relative_to(other.target)
            and Path(mount.source)
            == Path(other.source, Path(mount.target).relative_to(other.target))
            and (mount.read_only or not other.read_only)
            for other in kept
        )
        if not any(inside):
            kept.append(mount)
    return kept

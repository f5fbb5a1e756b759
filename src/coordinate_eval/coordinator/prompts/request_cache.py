"""The cache of built requests: the next checkpoint of the same model builds nothing.

A cache entry is `<key>.jsonl` and its index `<key>.json`, which is written last. The key covers
the dataset's settings, the tokenizer's bytes, engine, context length, the user's task files and
the version of the harness. Local data files of a task are checked on every use.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path

from filelock import FileLock

from coordinate_eval import _files, _owner
from coordinate_eval.coordinator.inputs.checkpoints import (
    checkpoint_files,
    clean_files,
    config_file,
)
from coordinate_eval.coordinator.run import lease
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.errors import DataMissing, RecordError, UserError
from coordinate_eval.evaluators.confined.messages import Command, Reply, Setup, Work
from coordinate_eval.evaluators.confined.process import BuildingProcess, ProcessEnded
from coordinate_eval.evaluators.harness.prompts.tokenizer import unusable
from coordinate_eval.evaluators.harness.tasks.task_names import kept_file
from coordinate_eval.evaluators.pulse import EndlessCall
from coordinate_eval.records import Checkpoint, Dataset, DatasetRequests, Suite

_CONFIGS = (config_file.CONFIG, config_file.PARAMS)

FORMAT = 10
"""Increased when a key comes to mean different requests, or an index has new facts."""


LOCK_SECONDS = 900.0
"""Longest wait for another process that builds the same requests: its machine may have died, and
storage on a network may never free its lock."""

_WANTS_MODELS = re.compile(
    r"torch|transformers|backend|import ?error|cannot import|no module named|is not defined",
    re.IGNORECASE,
)
"""Words in the errors of code that needs models where transformers has none."""


@dataclass(frozen=True)
class Built:
    """A dataset's requests in the cache, and their index."""

    requests: Path
    index: DatasetRequests


NOT_PROMPTED = {"group", "prior", "items", "splittable", "chance", "sample"}
"""Fields of a dataset that change nothing in its prompts."""


class Builder:
    """Builds the requests of a suite for one tokenizer."""

    def __init__(
        self,
        cache: Path,
        checkpoint: Checkpoint,
        suite: Suite,
        engine: str,
        max_length: int,
        files: Sequence[str] = (),
    ) -> None:
        """Take what prompts depend on.

        `files` are the checkpoint's small files where they are now, by default at its own place.
        """
        # Others may share the cache's folder. What they built is not taken for true.
        self._cache = cache / f"requests-{os.geteuid()}"
        self._kept_tasks = kept_file(cache)
        self._files, self._suite = files or checkpoint.files, suite
        self._named = checkpoint.files
        self._engine, self._max_length = engine, max_length
        self._vocabulary = checkpoint.vocabulary
        self._models = False
        self._tokenizer = self._tokenizer_now()
        self._common = [
            FORMAT,
            engine,
            max_length,
            _version("lm_eval"),
            self._tokenizer,
            [_listing(Path(folder)) for folder in suite.include_path],
        ]

    def get(self, dataset: Dataset) -> Built:
        """Return the dataset's requests, from the cache or built now.

        Raises:
            UserError: The dataset cannot be built; nothing is left in the cache.
        """
        if dataset.task is None:
            raise UserError(
                f"dataset {dataset.name} of suite {self._suite.name} has no task and cannot run: "
                "leave it out with --skip, or add --dry-run to plan it only"
            )
        found = self.find(dataset)
        if found is not None:
            return found
        key = self._key(dataset)
        requests, index = self._paths(key)
        lock = _files.own_folder(self._cache) / f"{key}.lock"
        with _locked(lock):
            try:
                made = _usable(requests, index) or self._build(dataset, key, requests, index)
            except BaseException:
                # Leave nothing. At worst, two that waited for the lock build at once.
                lock.unlink(missing_ok=True)
                raise
        if not self._fits(made):
            raise UserError(self._does_not_fit(made))
        return Built(requests, made)

    def find(self, dataset: Dataset) -> Built | None:
        """Return the dataset's requests if they are in the cache, and the model can answer them."""
        requests, index = self._paths(self._key(dataset))
        found = _usable(requests, index)
        return Built(requests, found) if found and self._fits(found) else None

    def stop(self) -> None:
        """End the process that builds, whatever it is doing: another thread may wait for it."""
        if "_process" in self.__dict__:
            self._process.kill()

    def _build(self, dataset: Dataset, key: str, requests: Path, index: Path) -> DatasetRequests:
        part = requests.with_name(f".{requests.name}.{_files.token()}.tmp")
        try:
            built = self._built(dataset, part)
            index.unlink(missing_ok=True)  # it is of what was there before
            _files.replace(part, requests)
        finally:
            part.unlink(missing_ok=True)
        found = built.model_copy(update={"key": key, "built": time.time()})
        _files.write_record(index, found)
        return found

    @cached_property
    def _copies(self) -> Path:
        """Make a private folder of clean copies of the checkpoint's files; it goes with this."""
        folder = Path(tempfile.mkdtemp(prefix="coordinate-eval-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        _owner.check_above(folder)  # TMPDIR may be anybody's
        try:
            clean_files.copy(self._files, folder)
        except OSError as error:
            raise UserError(
                f"the tokenizer cannot be copied into {folder}: {error}. Set TMPDIR to a folder "
                "with more room"
            ) from error
        if self._tokenizer_now() != self._tokenizer:
            raise UserError(
                "the tokenizer changed after this began; "
                "submit its checkpoint again when it is completely saved"
            )
        return folder

    def _tokenizer_now(self) -> str:
        """Return a digest of the checkpoint's small files but the config."""
        return _digest(Path(f) for f in self._files if Path(f).name not in _CONFIGS)

    def _built(self, dataset: Dataset, part: Path) -> DatasetRequests:
        """Let the process write the requests to a file, and return their index."""
        reply = self._asked(dataset, part)
        wants = not reply.offline and _WANTS_MODELS.search(reply.error)
        if reply.built is None and wants and not self._models:
            # The task's own code may want a model. Few tasks do, and their import takes seconds.
            self._process.close()
            del self._process
            self._models = True
            part.unlink(missing_ok=True)
            reply = self._asked(dataset, part)
        if reply.built is None:
            kind = DataMissing if reply.offline else UserError
            raise kind(self._of_the_checkpoint(reply.error))
        return reply.built

    def _asked(self, dataset: Dataset, part: Path) -> Reply:
        """Return the reply of the process, which may be an error."""
        command = Command(number=0, work=Work.BUILD, dataset=dataset, requests=str(part))
        try:
            return self._process.ask(command)
        except EndlessCall as error:
            del self._process
            raise UserError(self._of_the_checkpoint(unusable(self._copies, str(error)))) from error
        except ProcessEnded as error:
            del self._process
            raise UserError(
                f"dataset {dataset.name!r} cannot be built: {error}; what is printed above may "
                "say why. If memory ran out, [harness] memory_gib gives build jobs more"
            ) from error

    @cached_property
    def _process(self) -> BuildingProcess:
        setup = Setup(
            tokenizer=str(self._copies),
            include_path=self._suite.include_path,
            engine=self._engine,
            max_length=self._max_length,
            kept_tasks=str(self._kept_tasks or ""),
            models=self._models,
        )
        process = BuildingProcess(setup)
        weakref.finalize(self, process.close)
        return process

    def _fits(self, index: DatasetRequests) -> bool:
        """Return whether the model has all tokens of some requests, as far as that is known."""
        return not self._vocabulary or index.largest_token < self._vocabulary

    def _does_not_fit(self, index: DatasetRequests) -> str:
        config = next((f for f in self._named if Path(f).name in _CONFIGS), "its config")
        return (
            f"dataset {index.dataset!r}: the tokenizer gives the token id {index.largest_token}, "
            f"and the model has 0 to {self._vocabulary - 1} (vocab_size in {config}). Put the "
            "model's own tokenizer beside the weights, or name its folder with --tokenizer"
        )

    def _of_the_checkpoint(self, message: str) -> str:
        """Return a message with the folder of the tokenizer instead of that of its copy."""
        places = [
            Path(f).parent for f in self._named if Path(f).name in checkpoint_files.TOKENIZERS
        ]
        return message.replace(str(self._copies), str(places[0])) if places else message

    def _paths(self, key: str) -> tuple[Path, Path]:
        """Return the files of a key: requests and index."""
        return self._cache / f"{key}.jsonl", self._cache / f"{key}.json"

    def _key(self, dataset: Dataset) -> str:
        shape = dataset.model_dump(mode="json", exclude=NOT_PROMPTED)
        text = json.dumps([shape, *self._common], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def builder_of(run: Run) -> Builder:
    """Return a builder of a run's requests."""
    return Builder(
        Path(run.settings.cache_dir).expanduser(),
        run.checkpoint,
        run.suite,
        run.settings.engine.name,
        run.max_length,
        lease.leased(run).files,
    )


def link(built: Built, run_dir: RunDir, dataset: str) -> None:
    """Put built requests into a run, as links where run and cache are on one file system.

    What is there with its index stays: the run's plan may be of it. Two processes may do this at
    the same time: what is there is whole at any moment.
    """
    if run_dir.requests_index(dataset).exists():
        return
    target = run_dir.requests(dataset)
    part = target.with_name(f".{target.name}.{_files.token()}.tmp")
    try:
        try:
            os.link(built.requests, part)
        except OSError:
            shutil.copyfile(built.requests, part)
        _files.replace(part, target)
    finally:
        part.unlink(missing_ok=True)  # a link to a file that is there already stays
    _files.write_record(run_dir.requests_index(dataset), built.index)


def link_found(run: Run, run_dir: RunDir) -> None:
    """Put those requests into a run that are in the cache."""
    builder = builder_of(run)
    for dataset in run.suite.datasets:
        if not run_dir.requests_index(dataset.name).exists():
            found = builder.find(dataset)
            if found is not None:
                link(found, run_dir, dataset.name)


@contextlib.contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Hold a lock while the block runs, if that can be had.

    Building twice is only slow, since both builds give the same requests: what storage knows no
    locks, or never frees one, stops nobody.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # filelock's `Timeout` is one
            stack.enter_context(FileLock(lock, timeout=LOCK_SECONDS))
        yield


def _usable(requests: Path, index: Path) -> DatasetRequests | None:
    """Return the index, None if the entry is torn or a local file behind it has changed."""
    try:
        found = _files.read_record_if_there(index, DatasetRequests)
        size = requests.stat().st_size
    except (RecordError, FileNotFoundError):
        return None
    if found is None or found.offsets[-1:] != [size]:
        return None
    if any(_state(Path(p)) != state for p, state in found.sources.items()):
        return None
    return found


def _state(path: Path) -> str:
    """Return size and modification time of a file, as in `DatasetRequests.sources`."""
    try:
        found = path.stat()
    except OSError:
        return "missing"
    return f"{found.st_size} {found.st_mtime_ns}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.name.encode() + b"\0" + checkpoint_files.read(path))
    return digest.hexdigest()


def _listing(folder: Path) -> list[tuple[str, str]]:
    """Return names, sizes and modification times of the files below a folder of tasks."""
    return [
        (str(path.relative_to(folder)), _state(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]

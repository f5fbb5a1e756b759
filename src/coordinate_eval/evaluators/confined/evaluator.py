"""An evaluator that scores in confined processes, and checks what they say.

What the model wrote reaches the code of tasks in these processes only. They see Python, the tasks
and their data, the caches of the Hugging Face libraries, the checkpoint's tokenizer, and responses
and answers, all read-only. They have no network, no home folder and none of the user's variables.

Datasets whose scoring keeps text as text share one process. One whose scoring may run text of the
model has a process of its own, which sees no other dataset's responses and ends afterwards.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from coordinate_eval.errors import RecordError, UserError
from coordinate_eval.evaluators.confined import view
from coordinate_eval.evaluators.confined.messages import (
    MOST_ERROR_CHARACTERS,
    SAMPLES_AT_ONCE,
    AnswerFiles,
    Command,
    LoggedSample,
    LoggedVerdict,
    Reply,
    ResponseFiles,
    Setup,
    Unread,
    Work,
    check_names,
    check_questions,
    check_samples,
    check_verdicts,
)
from coordinate_eval.evaluators.confined.process import ScoringProcess
from coordinate_eval.evaluators.sandbox.confinement import Level, View
from coordinate_eval.evaluators.sandbox.sandbox import Sandbox
from coordinate_eval.records import (
    Dataset,
    DatasetRequests,
    DatasetResults,
    Question,
    judge_name,
)

TMP_BYTES = 1 << 30
"""For links to the caches' files, and for what a task's own code derives from its data."""


@dataclass(frozen=True)
class Place:
    """The folders of a run that scoring reads. Those of responses have a folder a dataset."""

    tokenizer: Path
    requests: Path
    responses: Path
    answers: Path


@dataclass
class _Holder:
    """A process, and the names that the datasets loaded in it may give scores for."""

    process: ScoringProcess
    hides: bool
    """Whether files of this machine are hidden from it."""
    folder: str
    """The working folder, that of the command."""
    names: dict[str, set[str]] = field(default_factory=dict)
    cpu_seconds: float = 0.0
    """CPU seconds that it took since it was last told to load a dataset."""

    def ask(self, command: Command) -> Reply:
        """Return the reply to a command, if it is no error."""
        reply = self.process.ask(command)
        self.cpu_seconds += reply.cpu_seconds
        if reply.unread:
            raise Unread(reply.error[-MOST_ERROR_CHARACTERS:])
        if reply.error:
            hidden = view.hidden_file(reply.error, self.folder) if self.hides else ""
            raise UserError(reply.error[-MOST_ERROR_CHARACTERS:] + hidden)
        return reply


@dataclass(frozen=True)
class Samples:
    """The verdicts on all documents of a dataset, and all else about some of them."""

    verdicts: list[LoggedVerdict]
    _ask: Callable[[Command], list[LoggedSample]]
    _command: Command

    def at(self, positions: Sequence[int]) -> Iterator[LoggedSample]:
        """Yield the samples of the verdicts at these positions, in this order."""
        for start in range(0, len(positions), SAMPLES_AT_ONCE):
            page = list(positions[start : start + SAMPLES_AT_ONCE])
            command = self._command.model_copy(update={"positions": page})
            samples = self._ask(command)
            check_samples(samples, self.verdicts, command)
            yield from samples


class ConfinedEvaluator:
    """Scores datasets from files of a run. Use it as a context manager: it ends its processes."""

    def __init__(
        self,
        setup: Setup,
        place: Place,
        tasks: Sequence[str],
        indexes: Mapping[str, DatasetRequests],
        *,
        most_seconds: float,
        allow_unsafe: bool,
        log: BinaryIO | None = None,
    ) -> None:
        """Find out how processes can be confined here, and start the first one.

        Args:
            setup: what processes need; `mirrors` is filled in.
            place: the folders that they read.
            tasks: names of the datasets' tasks, or paths of task files.
            indexes: of the requests of every dataset that may be scored.
            most_seconds: for one reply of a process, which is ended afterwards.
            allow_unsafe: text of the model may run unconfined where nothing confines it.
            log: where the output of the processes goes; None for where this one's errors go.
        """
        self._setup, self._place = setup, place
        self._tasks, self._indexes = tasks, indexes
        self._most_seconds, self._log = most_seconds, log
        self._caches = view.Caches.of(os.environ)
        self._level, self._why_not = find_level(allow_unsafe)
        if not self._is_confined:
            sys.stderr.write("scoring is not confined: nothing on this machine can\n")
        elif log is None:
            sys.stderr.write(f"scoring is confined at the level {self._level}\n")
        self._shared: _Holder | None = None
        if not all(index.runs_text for index in indexes.values()):
            self._shared = self._start()

    def __enter__(self) -> "ConfinedEvaluator":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shared is not None:
            self._shared.process.close()

    def questions(self, dataset: Dataset, responses: ResponseFiles) -> list[Question]:
        """Return the questions that the metric asks about some items, without duplicates.

        Raises as `finish` does.
        """
        with self._loaded(dataset) as holder:
            command = _command(Work.QUESTIONS, dataset, responses)
            questions = holder.ask(command).questions
            judge = judge_name(self._setup.judge_model, self._setup.judge_revision)
            check_questions(questions, command, judge)
        return questions

    def finish(
        self, dataset: Dataset, responses: ResponseFiles, answers: AnswerFiles
    ) -> DatasetResults:
        """Score the dataset from all of its responses.

        Raises:
            UserError: a response is missing or answers another prompt, the task's own code fails,
                or it may run text of the model and nothing confines it here.
            RecordError: the process said something else than scores of this dataset.
            ProcessEnded: the process ended before it replied.
            OSError: a file of the run cannot be read now, or no process can be started.
        """
        return self._scores(_command(Work.FINISH, dataset, responses, answers))

    def finish_part(
        self, dataset: Dataset, responses: ResponseFiles, answers: AnswerFiles
    ) -> DatasetResults:
        """Score some items as if the dataset had no others. Raises as `finish` does."""
        return self._scores(_command(Work.FINISH_PART, dataset, responses, answers))

    def _scores(self, command: Command) -> DatasetResults:
        with self._loaded(command.dataset) as holder:
            results = holder.ask(command).results
            if results is None:
                raise RecordError(f"dataset {command.dataset.name!r}: its process gave no scores")
            check_names(results, holder.names[command.dataset.name], command)
        return results.model_copy(update={"cpu_seconds": holder.cpu_seconds})

    @contextmanager
    def samples(
        self, dataset: Dataset, responses: ResponseFiles, answers: AnswerFiles
    ) -> Iterator["Samples"]:
        """Score the whole dataset, and give its samples in the block. Raises as `finish` does."""
        with self._loaded(dataset) as holder:
            command = _command(Work.VERDICTS, dataset, responses, answers)
            verdicts = holder.ask(command).verdicts
            check_verdicts(verdicts, holder.names[dataset.name], command)
            ask = command.model_copy(update={"work": Work.SAMPLES})
            yield Samples(verdicts, lambda asked: holder.ask(asked).samples, ask)

    @property
    def _is_confined(self) -> bool:
        return self._level not in (None, Level.LIMITS)

    @contextmanager
    def _loaded(self, dataset: Dataset) -> Iterator[_Holder]:
        """Load a dataset in its process. One of its own ends with the block.

        The names that its scores may have are asked for before the process is told to read what
        the model wrote.
        """
        runs_text = self._runs_text(dataset)
        if runs_text and self._level is None:
            raise UserError(refusal(dataset.name, runs_text, self._why_not))
        if runs_text:
            holder = self._start(dataset.name)
        elif self._shared is None or self._shared.process.ended:
            holder = self._shared = self._start()
        else:
            holder = self._shared
        try:
            load = _command(Work.LOAD, dataset)
            index = str(self._index_file(dataset.name))
            holder.cpu_seconds = 0.0
            names = holder.ask(load.model_copy(update={"index": index})).names
            holder.names.setdefault(dataset.name, set(names))
            yield holder
        finally:
            if runs_text:
                holder.process.close()

    def _runs_text(self, dataset: Dataset) -> str:
        """Return what in its scoring may run what the model wrote, in a few words, or nothing.

        Raises:
            RecordError: the index of its requests is missing.
        """
        index = self._indexes.get(dataset.name)
        if index is None:
            raise RecordError(f"dataset {dataset.name!r}: the index of its requests is missing")
        return index.runs_text

    def _start(self, only: str = "") -> _Holder:
        """Start a process that sees the responses of all datasets, or of `only` one.

        Raises:
            UserError: it sees nothing of the user's home, and tasks lie there directly.
            OSError, ValueError: it cannot be confined to what it has to see.
        """
        confined = self._is_confined
        setup, seen = self._setup, View()
        if confined:
            setup = setup.model_copy(update={"mirrors": self._caches.mirrors})
            seen = self._view(only)
        environment = view.environment(os.environ, self._caches, confined=confined)
        level = self._level or Level.LIMITS
        seconds, log = self._most_seconds, self._log
        process = ScoringProcess(setup, level, seen, environment, seconds, log)
        return _Holder(process, hides=confined, folder=setup.folder)

    def _index_file(self, dataset: str) -> Path:
        return self._place.requests / f"{dataset}.json"

    def _view(self, only: str) -> View:
        place = self._place
        folders = [place.responses, place.answers]
        for folder in folders:
            folder.mkdir(exist_ok=True)  # a folder must be there to be shown
        names = [only] if only else list(self._indexes)
        data = [file for name in names for file in self._indexes[name].sources]
        read = [
            *view.python_paths(os.environ),
            *view.task_paths(self._setup.include_path, self._tasks, data),
            *(folder / only for folder in folders),
            *map(self._index_file, names),
            place.tokenizer,
            *([Path(self._setup.kept_tasks)] if self._setup.kept_tasks else []),
            *([Path(self._setup.baselines)] if self._setup.baselines else []),
            self._caches.hub,
            *self._caches.written.values(),
        ]
        return View(read=view.showable(read), memory_bytes=TMP_BYTES)


def find_level(allow_unsafe: bool) -> tuple[Level | None, str]:
    """Return the strongest level that works here, or None and why there is none."""
    try:
        return Sandbox.probe(allow_unsafe=allow_unsafe).level, ""
    except UserError as error:
        return None, str(error)


def refusal(dataset: str, runs_text: str, why: str) -> str:
    """Return why a dataset is not scored where nothing confines its scoring."""
    return f"dataset {dataset!r}: its scoring may run what the model wrote ({runs_text}), and {why}"


def _command(
    work: Work,
    dataset: Dataset,
    responses: ResponseFiles | None = None,
    answers: AnswerFiles | None = None,
) -> Command:
    return Command(
        number=0,
        work=work,
        dataset=dataset,
        responses=[str(path) for path in responses.paths] if responses else [],
        answers=[str(path) for path in answers.paths] if answers else [],
    )

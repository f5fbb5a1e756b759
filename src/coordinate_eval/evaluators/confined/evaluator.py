"""An evaluator that scores in confined processes, and checks what they say.

What the model wrote reaches the code of tasks in these processes only. They see Python, the tasks
and their data, the caches of the Hugging Face libraries and the checkpoint's tokenizer, all
read-only. They have no network, no home folder and none of the user's variables. Each dataset is
scored in a process of its own, which gets its responses and answers and no others', and is forked
from a mother that never gets any (`mother.py`).
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from coordinate_eval.errors import RecordError, UserError
from coordinate_eval.evaluators.confined import view
from coordinate_eval.evaluators.confined.messages import (
    MOST_ERROR_CHARACTERS,
    SAMPLES_AT_ONCE,
    Command,
    LoggedSample,
    LoggedVerdict,
    Reply,
    Setup,
    Work,
    check_item_scores,
    check_names,
    check_questions,
    check_samples,
    check_verdicts,
)
from coordinate_eval.evaluators.confined.process import Conversation, ScoringProcess
from coordinate_eval.evaluators.confined.run_files import AnswerFiles, ResponseFiles
from coordinate_eval.evaluators.sandbox.confinement import Level, View
from coordinate_eval.evaluators.sandbox.sandbox import Sandbox
from coordinate_eval.records import (
    Dataset,
    DatasetRequests,
    DatasetResults,
    Question,
    judge_name,
)

NO_ANSWERS = AnswerFiles()

TMP_BYTES = 1 << 30
"""For links to the caches' files, and for what a task's own code derives from its data."""


@dataclass
class _Loaded:
    """A process that has loaded a dataset, and the names that it may give scores for."""

    conversation: Conversation
    dataset: Dataset
    hides: bool
    """True if files of this machine are hidden from it."""
    folder: str
    """The working folder, that of the command."""
    names: set[str] = field(default_factory=set)
    cpu_seconds: float = 0.0

    def ask(self, work: Work, **more: object) -> Reply:
        """Return the reply to a command, if it is no error."""
        command = Command.model_validate({"work": work, "dataset": self.dataset, **more})
        reply = self.conversation.ask(command)
        self.cpu_seconds += reply.cpu_seconds
        if reply.error:
            hidden = view.hidden_file(reply.error, self.folder) if self.hides else ""
            raise UserError(reply.error[-MOST_ERROR_CHARACTERS:] + hidden)
        return reply


@dataclass(frozen=True)
class Samples:
    """The verdicts on all documents of a dataset, and all else about some of them."""

    verdicts: list[LoggedVerdict]
    _loaded: _Loaded
    _part: bool

    def at(self, positions: Sequence[int]) -> Iterator[LoggedSample]:
        """Yield the samples of the verdicts at these positions, in this order."""
        for start in range(0, len(positions), SAMPLES_AT_ONCE):
            page = list(positions[start : start + SAMPLES_AT_ONCE])
            samples = self._loaded.ask(Work.SAMPLES, positions=page, part=self._part).samples
            check_samples(samples, [self.verdicts[n] for n in page], self._loaded.dataset)
            yield from samples


class ConfinedEvaluator:
    """Scores datasets from files of a run. Use it as a context manager: it ends its processes."""

    def __init__(
        self,
        setup: Setup,
        tasks: Sequence[str],
        indexes: Mapping[str, DatasetRequests],
        *,
        most_seconds: float,
        allow_unsafe: bool,
        log: BinaryIO | None = None,
    ) -> None:
        """Find out how processes can be confined here, and start the mother of all.

        Args:
            setup: what processes need; `mirrors` is filled in.
            tasks: names of the datasets' tasks, or paths of task files.
            most_seconds: for one reply of a process, which is ended afterwards.
            allow_unsafe: text of the model may run unconfined where nothing confines it.
            log: where the output of the processes goes; None for where this one's errors go.
        """
        self._setup = setup
        self._tasks, self._indexes = tasks, indexes
        self._most_seconds, self._log = most_seconds, log
        self._caches = view.Caches.of(os.environ)
        self._level, self._why_not = find_level(allow_unsafe)
        if not self._is_confined:
            sys.stderr.write("scoring is not confined: nothing on this machine can\n")
        elif log is None:
            sys.stderr.write(f"scoring is confined at the level {self._level}\n")
        self._mother = self._start()

    def __enter__(self) -> "ConfinedEvaluator":
        return self

    def __exit__(self, *_: object) -> None:
        self._mother.close()

    def questions(self, dataset: Dataset, responses: ResponseFiles) -> list[Question]:
        """Return the questions that the metric asks about some items, without duplicates.

        Raises as `finish` does.
        """
        with self._loaded(dataset, responses) as loaded:
            questions = loaded.ask(Work.QUESTIONS).questions
            judge = judge_name(self._setup.judge_model, self._setup.judge_revision)
            check_questions(questions, dataset, judge)
        return questions

    def finish(
        self,
        dataset: Dataset,
        responses: ResponseFiles,
        answers: AnswerFiles,
        *,
        part: bool = False,
    ) -> DatasetResults:
        """Score the dataset from all of its responses, or some items as if it had no others.

        Raises:
            UserError: a response is missing or answers another prompt, the task's own code fails,
                or the model wrote text and nothing confines what becomes of it here.
            RecordError: the process said something else than scores of this dataset.
            ProcessEnded: the process ended before it replied.
            OSError: a file of the run cannot be read now, or no process can be started.
        """
        with self._loaded(dataset, responses, answers) as loaded:
            results = loaded.ask(Work.FINISH, part=part).results
            if results is None:
                raise RecordError(f"dataset {dataset.name!r}: its process gave no scores")
            check_names(results, loaded.names, dataset)
            tables = loaded.ask(Work.ITEM_SCORES).item_scores
            check_item_scores(tables, loaded.names, self._indexes[dataset.name].items, dataset)
        noted = {"item_scores": tables, "cpu_seconds": loaded.cpu_seconds}
        return results.model_copy(update=noted)

    @contextmanager
    def samples(
        self,
        dataset: Dataset,
        responses: ResponseFiles,
        answers: AnswerFiles,
        *,
        part: bool = False,
    ) -> Iterator[Samples]:
        """Score the dataset, and give its samples in the block. Raises as `finish` does.

        With `part` only some items have responses.
        """
        with self._loaded(dataset, responses, answers) as loaded:
            verdicts = loaded.ask(Work.VERDICTS, part=part).verdicts
            check_verdicts(verdicts, loaded.names, dataset)
            yield Samples(verdicts, loaded, part)

    @property
    def _is_confined(self) -> bool:
        return self._level not in (None, Level.LIMITS)

    @contextmanager
    def _loaded(
        self, dataset: Dataset, responses: ResponseFiles, answers: AnswerFiles = NO_ANSWERS
    ) -> Iterator[_Loaded]:
        """Load a dataset in a process that ends with the block.

        The names that its scores may have are asked for before the process is told to read what
        the model wrote.
        """
        index = self._indexes.get(dataset.name)
        if index is None:
            raise RecordError(f"dataset {dataset.name!r}: the index of its requests is missing")
        if self._level is None and index.generate_requests:
            raise UserError(refusal(dataset.name, self._why_not))
        if self._mother.closed or self._mother.ended:
            self._mother.close()
            self._mother = self._start()
        hides, folder = self._is_confined, self._setup.folder
        with (
            responses.copied() as texts,
            answers.copied() as answered,
            self._mother.child(texts, answered) as conversation,
        ):
            loaded = _Loaded(conversation, dataset, hides, folder)
            # Where its requests lie in their file concerns nobody who scores.
            reply = loaded.ask(Work.LOAD, index=index.model_copy(update={"offsets": []}))
            loaded.names.update(reply.names)
            self._mother.modules = reply.modules
            yield loaded

    def _start(self) -> ScoringProcess:
        """Start a mother.

        Raises:
            UserError: it sees nothing of the user's home, and tasks lie there directly.
            OSError, ValueError: it cannot be confined to what it has to see.
        """
        confined = self._is_confined
        setup, seen = self._setup, View()
        if confined:
            setup = setup.model_copy(update={"mirrors": self._caches.mirrors})
            seen = self._view()
        environment = view.environment(os.environ, self._caches, confined=confined)
        level = self._level or Level.LIMITS
        return ScoringProcess(setup, level, seen, environment, self._most_seconds, self._log)

    def _view(self) -> View:
        data = [file for index in self._indexes.values() for file in index.sources]
        setup = self._setup
        read = [
            *view.python_paths(os.environ),
            *view.task_paths(setup.include_path, self._tasks, data),
            *(Path(path) for path in (setup.tokenizer, setup.kept_tasks, setup.baselines) if path),
            self._caches.hub,
            *self._caches.written.values(),
        ]
        return View(read=view.showable(read), memory_bytes=TMP_BYTES)


def find_level(allow_unsafe: bool) -> tuple[Level | None, str]:
    """Return the strongest level that works here, or None and why no level works."""
    try:
        return Sandbox.probe(allow_unsafe=allow_unsafe).level, ""
    except UserError as error:
        return None, str(error)


def refusal(dataset: str, why: str) -> str:
    """Return why a dataset is not scored where nothing confines its scoring."""
    return f"dataset {dataset!r}: its scoring may run what the model wrote, and {why}"

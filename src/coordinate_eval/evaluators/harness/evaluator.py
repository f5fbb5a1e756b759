"""The evaluator over lm-evaluation-harness: its tasks, prompts and metrics, without its models.

`build` lets the harness make all prompts of a dataset, and tokenizes them as its model classes do.
`finish` runs the harness's `evaluate` once over the recorded responses. `questions` runs the same
scoring on some of the items, and records the questions instead of answering them.

The scores equal those of the command `lm_eval --seed 0,SEED,SEED,SEED` with the same tasks and
options. A metric that draws random numbers gets the same numbers at every scoring. They differ from
the command's, which depend on everything that was imported and run before.

In the results, the dataset's own task or group has the dataset's name. Its leaf tasks keep their
names if the dataset is named like its task. Otherwise they are called `dataset/leaf`, so that a
suite can have one task with two settings.
"""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_eval.evaluator import evaluate

from coordinate_eval.errors import RecordError, UserError
from coordinate_eval.evaluators.harness.answered_dataset import (
    Answered,
    AnsweredDataset,
    generated_texts,
    of_many,
    own_code,
    score_documents,
)
from coordinate_eval.evaluators.harness.built_dataset import BuiltDataset
from coordinate_eval.evaluators.harness.code_eval import AnswerBook, Collector, answered_by
from coordinate_eval.evaluators.harness.item_scores import ItemBook
from coordinate_eval.evaluators.harness.kept_dataset import KeptDataset, key_of
from coordinate_eval.evaluators.harness.prompts.language_models import (
    Backend,
    ReplayModel,
)
from coordinate_eval.evaluators.harness.results import (
    SEEN_DOCUMENTS,
    ReadResponses,
    dataset_results,
    result_names,
    scripts_of,
    tally,
    texts_in,
)
from coordinate_eval.evaluators.harness.samples import Noted, NotingBook
from coordinate_eval.evaluators.harness.session import harness_session
from coordinate_eval.evaluators.harness.tasks.judged_task import (
    NOBODY,
    Panel,
    in_order,
    judge_results,
)
from coordinate_eval.evaluators.harness.tasks.made_from import data_sources, made_from
from coordinate_eval.evaluators.harness.tasks.task_loader import (
    TaskLoader,
    asks_questions,
    language_of_programs,
)
from coordinate_eval.evaluators.pulse import Pulse
from coordinate_eval.evaluators.sandbox.toolchains import language
from coordinate_eval.records import (
    Answer,
    Dataset,
    DatasetRequests,
    DatasetResults,
    ItemScores,
    Question,
    Request,
    RequestKind,
    Response,
    computed_before,
    computed_by_turns,
    context_tokens,
    largest_token,
    prompt_lengths,
)


class HarnessEvaluator:
    """An evaluator for any task, group or tag of the harness, and for the user's own tasks.

    No method needs a model or a GPU. Use it in one thread only: the harness seeds and uses global
    random generators.
    """

    def __init__(
        self,
        *,
        tokenizer: Path,
        max_length: int,
        include_path: Sequence[str] = (),
        seed: int = 1234,
        backend: Backend = "hf",
        pulse: Pulse | None = None,
        kept_tasks: Path | None = None,
        panel: Panel = NOBODY,
    ) -> None:
        """Prepare an evaluator. Reads nothing yet.

        Args:
            include_path: the user's folders of task files; the last one wins.
            backend: the model class of the harness whose truncation is used; see
                `language_models`. Use "vllm" with that engine, because prompts for "hf" may be two
                tokens too long for it.
            pulse: where to note calls of the tokenizer, for whoever watches this process.
            kept_tasks: where the index of the harness's tasks is kept; see `task_names.py`.
            panel: who rates the answers of datasets with a rubric.
        """
        self._panel = panel
        self._loader = TaskLoader(
            include_path=include_path,
            tokenizer=tokenizer,
            seed=seed,
            kept_tasks=kept_tasks,
            panel=panel,
            max_length=max_length,
        )
        self._kept = KeptDataset(
            self._loader,
            tokenizer=tokenizer,
            max_length=max_length,
            backend=backend,
            seed=seed,
            pulse=pulse,
        )
        self._scripts: dict[str, dict[str, list[str]]] = {}
        self._noted: dict[str, list[Noted]] = {}
        self._item_scores: list[ItemScores] = []

    def build(self, dataset: Dataset, write: Callable[[Request], None]) -> DatasetRequests:
        """Call `write` with every request of the dataset, in item order.

        Returns the index of the requests. The caller fills in its `offsets`, `key` and `built`.

        Raises:
            UserError: the task is unknown, malformed, or has no items.
        """
        prompt_tokens = cached_tokens = generate_requests = 0
        largest, context = -1, 0
        by_task: Counter[str] = Counter()
        outputs: list[int] = []
        before: Request | None = None
        with harness_session():
            # The time of this dataset excludes the tokenizer and the index, which all share.
            self._kept.load_tokenizer()
            self._loader.begin(dataset)
            began = time.process_time()
            built = self._kept.built(dataset)
            question_ids, example = _check_judged(built)
            digests = built.digests()
            cut_before = built.model.cut_prompts
            for request in built.requests():
                write(request)
                if digests:
                    digests[request.item].add(request)
                by_task[request.task] += request.turns
                largest = max(largest, largest_token(request))
                context = max(context, context_tokens(request))
                prompt_tokens += sum(prompt_lengths(request))
                cached_tokens += computed_before(request, before) + computed_by_turns(request)
                before = request
                if request.kind is RequestKind.GENERATE:
                    generate_requests += request.turns
                    outputs.append(request.turns * request.max_tokens)
        tasks = built.loaded.tasks
        programs = {name: language_of_programs(task) for name, task in tasks.items()}
        rows = {name: language(spoken) for name, spoken in programs.items() if spoken}
        from_this = made_from(tasks, self._kept.options(dataset), built.random_states)
        return DatasetRequests(
            dataset=dataset.name,
            key="",
            items=built.items,
            requests=by_task.total(),
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            generate_requests=generate_requests,
            max_output_tokens=sum(outputs),
            longest_output_tokens=max(outputs, default=0),
            build_cpu_seconds=time.process_time() - began,
            context_tokens=context,
            cut_prompts=built.model.cut_prompts - cut_before,
            largest_token=largest,
            asks=bool(rows) or dataset.rubric is not None,
            judged=dataset.rubric is not None,
            question_ids=question_ids,
            judge_example=example,
            languages=sorted({spoken for spoken in programs.values() if spoken}),
            metric_cpu_seconds=sum(by_task[name] * row.cpu_seconds for name, row in rows.items()),
            plain_chat=built.plain_chat,
            own_answers=built.own_answers,
            versions={name: str(task.VERSION) for name, task in tasks.items()},
            task_items=dict(Counter({ask.item: ask.task for ask in built.asks}.values())),
            scripts=_scripts(built),
            sources={
                path: state
                for task in tasks.values()
                for path, state in data_sources(
                    task.get_config("dataset_path"), task.get_config("dataset_kwargs")
                ).items()
            },
            end_text=built.model.end_text,
            made_from=from_this if digests else "",
            item_digests=list(map(str, digests)) if from_this else [],
            offsets=[],
        )

    def prepare(self) -> None:
        """Import and read what all datasets need. Processes that score are forked afterwards."""
        with harness_session():
            self._loader.prepare()

    def load(self, dataset: Dataset, index: DatasetRequests) -> list[str]:
        """Load the dataset's tasks, and make its prompts if scoring has to compare them.

        `index` is what `build` returned. What is loaded stays in memory until another dataset is.

        Returns:
            the names that its results may have, of its tasks and groups.
        """
        with harness_session():
            loaded = (self._kept.unchanged(dataset, index) or self._kept.built(dataset)).loaded
        self._scripts[key_of(dataset)] = index.scripts
        return result_names(dataset, top=loaded.top, names=[*loaded.tasks, *loaded.table["groups"]])

    def questions(self, dataset: Dataset, responses: Iterable[Response]) -> list[Question]:
        """Return the questions that the metric asks about some items, without duplicates.

        `responses` holds all responses to these items, in any order.
        """
        collector = Collector()
        with harness_session():
            found, answered = self._kept.answered(dataset, responses, whole=False)
            with answered_by(collector), own_code(dataset):
                for name, task in found.loaded.tasks.items():
                    chosen = [(ask, texts) for ask, texts in answered if ask.task == name]
                    if chosen and (asks_questions(task) or found.loaded.judged):
                        score_documents(task, chosen)
        return collector.questions

    def finish(
        self,
        dataset: Dataset,
        responses: Iterable[Response],
        answers: Mapping[str, Answer],
        *,
        part: bool = False,
    ) -> DatasetResults:
        """Score the dataset from all of its responses, or a part of its items.

        A `part` is scored as if the dataset had no other items. All of its responses must be given.
        Leaf tasks with no item or only one are left out, also from their groups' scores: a single
        item has no standard error, and then its group would have none. If every leaf task has only
        one item, all are kept. The scores equal those of the harness with its `samples` argument
        and the same prompts.

        Raises:
            RecordError: a response or an answer is missing, or answers another prompt.
            UserError: a part has no response, or the task's own code fails.
        """
        book, read = AnswerBook(answers), ReadResponses(responses)
        with harness_session():
            found, given = self._kept.answered(dataset, read, whole=not part)
            answered = of_many(given) if part else given
            if not answered:
                raise UserError(f"dataset {dataset.name!r}: no item has a response")
            outputs = tally(
                generated_texts(answered), read.cut, self._scripts.get(key_of(dataset), {})
            )
            found.loaded.count_anew()
            items = ItemBook(answered, found.documents())
            with found.only(answered) if part else found.whole(answered) as chosen:
                tasks = chosen.table["tasks"]
                with answered_by(book), own_code(dataset), items.noting(tasks):
                    evaluated = evaluate(
                        ReplayModel(chosen.recorded),
                        chosen.table,
                        limit=None if part else dataset.limit,
                        samples=chosen.samples,
                        log_samples=False,
                        confirm_run_unsafe_code=True,
                    )
                names = result_names(dataset, top=found.loaded.top, names=tasks)
                self._item_scores = items.tables(tasks, dict(zip(tasks, names, strict=True)))
            _check_answered(dataset, book)
            judge = self._about_judge(dataset, found, answered)
        count = len({ask.item for ask, _ in answered}) if part else found.items
        results = dataset_results(dataset, top=found.loaded.top, items=count, evaluated=evaluated)
        if dataset.rubric is not None:
            results = in_order(results)
        noted = {
            "judge": judge,
            "toolchains": book.toolchains,
            "plain_chat": found.plain_chat,
            "own_answers": found.own_answers,
            "outputs": outputs,
        }
        return results.model_copy(update=noted)

    def item_scores(self) -> list[ItemScores]:
        """Return the scores of each item of the dataset that was finished last."""
        return self._item_scores

    def _about_judge(
        self, dataset: Dataset, found: AnsweredDataset, answered: Answered
    ) -> dict[str, Any]:
        """Return what the results say about the judge; nothing without a rubric."""
        if dataset.rubric is None:
            return {}
        documents: dict[str, dict[int, Any]] = {name: {} for name in found.loaded.judged}
        for asked, _ in answered:
            documents[asked.task].setdefault(asked.doc, asked.instance.doc)
        judged = [
            (task, list(documents[name].values())) for name, task in found.loaded.judged.items()
        ]
        return judge_results(judged, dataset.rubric, self._panel)

    def noted(
        self,
        dataset: Dataset,
        responses: Iterable[Response],
        answers: Mapping[str, Answer],
        *,
        part: bool = False,
    ) -> list[Noted]:
        """Return what the harness notes of each document while it scores the whole dataset.

        They are those of its option `--log_samples`, with prompts, in its order. They stay in
        memory: the next call returns the same. With `part` only some items have responses.

        Raises as `finish` does.
        """
        key = key_of(dataset)
        if key not in self._noted:
            book = NotingBook(answers)
            with harness_session():
                found = self._kept.built(dataset)
                answered = found.answered(responses, whole=not part)
                found.rewind()
                with found.only(answered) as chosen:
                    tasks = chosen.table["tasks"]
                    with answered_by(book), own_code(dataset), book.noting(tasks):
                        evaluated = evaluate(
                            ReplayModel(chosen.recorded),
                            chosen.table,
                            samples=chosen.samples,
                            bootstrap_iters=0,
                            log_samples=True,
                            confirm_run_unsafe_code=True,
                        )
            _check_answered(dataset, book)
            items = {(ask.task, ask.doc): ask.item for ask, _ in answered}
            names = result_names(dataset, top=found.loaded.top, names=tasks)
            shown = dict(zip(tasks, names, strict=True))
            self._noted[key] = list(book.noted(evaluated["samples"], items, shown))
        return self._noted[key]


def _scripts(built: BuiltDataset) -> dict[str, list[str]]:
    """Return the scripts in which each generating task is written, by some of its prompts."""
    texts: dict[str, list[str]] = {}
    for name, asks in itertools.groupby(built.asks, key=lambda ask: ask.task):
        asked = [ask.instance for ask in asks if ask.instance.request_type == "generate_until"]
        for instance in asked[:: len(asked) // SEEN_DOCUMENTS + 1]:
            texts.setdefault(name, []).extend([instance.args[0], *texts_in(instance.doc)])
    return {name: scripts_of(found) for name, found in texts.items()}


def _check_judged(built: BuiltDataset) -> tuple[list[str], str]:
    """Try the rubric on each document.

    Returns:
        the ids by which a baseline's answers are found, and an example of a question.
    """
    ids, example = [], ""
    for name, judged in built.loaded.judged.items():
        documents = {ask.doc: ask.instance.doc for ask in built.asks if ask.task == name}
        ids += judged.check(list(documents.values()))
        example = example or judged.example
    return ids, example


def _check_answered(dataset: Dataset, book: AnswerBook) -> None:
    if book.missing:
        raise RecordError(
            f"dataset {dataset.name!r}: {len(book.missing)} questions of its metric have no "
            f"answer, such as {min(book.missing)}: run the job that answers them again"
        )

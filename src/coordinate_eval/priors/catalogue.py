"""Shipped figures of well-known datasets, for predictions before anything was built or run.

`catalogue.csv` has one row per dataset. Items come from dataset cards and upstream files; a limit
applies to each of the tasks that share them. Mean prompt and output tokens per request were
measured on those files if they are public, and estimated otherwise. `same_examples` is 1 if a task
shows the same examples to all its items, as the harness's own configurations say. Metric seconds
are per item, on one core.
"""

import csv
from functools import cache
from importlib import resources
from typing import NamedTuple

from coordinate_eval.priors.roofline import WRITTEN_SHARE, Work
from coordinate_eval.records import CACHE_BLOCK, Dataset, DatasetRequests

GUESSED_PROMPT = 400
"""Tokens assumed of a prompt of which nothing is known."""

LONGEST = 4
"""Multiple of a dataset's mean prompt that its longest one is assumed to have."""

DEFAULT_ANSWER = 256
"""Tokens that the harness lets a model generate where a task says nothing."""


class Entry(NamedTuple):
    """A row of the catalogue: tokens are means per request, seconds are per item."""

    dataset: str
    task: str
    kind: str
    tasks: int
    items: int
    requests_per_item: float
    prompt_tokens: float
    output_tokens: float
    max_output_tokens: int
    num_fewshot: int
    same_examples: int
    metric_cpu_seconds: float


@cache
def entries() -> dict[str, Entry]:
    """Return all rows by dataset name."""
    text = (resources.files("coordinate_eval.priors") / "catalogue.csv").read_text()
    kinds = Entry.__annotations__
    return {
        row["dataset"]: Entry(**{key: kinds[key](row[key]) for key in Entry._fields})
        for row in csv.DictReader(text.splitlines())
    }


def find(dataset: Dataset) -> Entry | None:
    """Return the row of a dataset by its name or its harness task, or None."""
    rows = entries()
    if dataset.name in rows:
        return rows[dataset.name]
    return next((row for row in rows.values() if row.task and row.task == dataset.task), None)


def items(dataset: Dataset) -> int | None:
    """Return the items of a dataset after its limit or of its sample, None if nothing says them."""
    entry = find(dataset)
    whole = dataset.items or (entry.items if entry else None)
    if whole is None:
        return None
    tasks = count_tasks(dataset)
    if dataset.limit is not None:
        whole = min(whole, dataset.limit * tasks)
    return dataset.in_sample(whole, tasks)


def count_tasks(dataset: Dataset) -> int:
    """Return the number of a dataset's leaf tasks, 1 if it is not known."""
    entry = find(dataset)
    alike = entry is not None and dataset.task in (None, entry.task)
    return entry.tasks if entry and alike else 1


def enough(dataset: Dataset, precision: float) -> float:
    """Return the share of a dataset's items that gives its score this standard error, at most 1.

    The standard error of a score is `s / √n`, as the harness tells it, and `s` is 0.5 at most for
    scores of an item between 0 and 1. All items are needed where their number is not known, or a
    judge gives scores on a scale of its own.
    """
    entry = find(dataset)
    whole = items(dataset.model_copy(update={"sample": None}))
    judged = dataset.rubric is not None or (entry is not None and entry.kind == "judge")
    if judged or whole is None:
        return 1.0
    return min(1.0, 0.25 / (whole * precision**2))


def known_work(dataset: Dataset, built: DatasetRequests | None = None) -> Work | None:
    """Return the items and tokens of a dataset, None if nothing is known of it.

    They come from the built requests, else from the catalogue, else from the suite's number of
    items.
    """
    if built is not None:
        return built_work(dataset, built)
    predicted = predicted_work(dataset)
    if predicted is None and dataset.items is not None:
        return guessed_work(dataset, dataset.items)
    return predicted


def predicted_work(dataset: Dataset) -> Work | None:
    """Return the work that the catalogue predicts for a dataset, or None without a row."""
    entry, count = find(dataset), items(dataset)
    if entry is None or count is None:
        return None
    requests = count * entry.requests_per_item * (dataset.repeats or 1)
    return Work(
        items=count,
        requests=requests,
        prompt_tokens=requests * entry.prompt_tokens,
        output_tokens=requests * entry.output_tokens,
        longest_output_tokens=min(_in_turn(entry) * entry.max_output_tokens, _longest(entry)),
        cached_tokens=count * (dataset.repeats or 1) * _computed_before(entry),
        metric_cpu_seconds=count * entry.metric_cpu_seconds,
    )


def _longest(entry: Entry) -> float:
    """Return the expected tokens of the longest item's output, before any limit."""
    return 4 * _in_turn(entry) * entry.output_tokens


def _in_turn(entry: Entry) -> float:
    """Return the requests of an item that follow each other: what a judge rates is a conversation.

    Those of other items are in flight together.
    """
    return entry.requests_per_item if entry.kind == "judge" else 1


def _computed_before(entry: Entry) -> float:
    """Return the mean tokens of an item's requests that were computed with those before them.

    These are whole blocks of `CACHE_BLOCK` tokens. The choices of an item are assumed to share all
    of their prompt, and an example to be as long as a question.
    """
    examples = entry.same_examples * entry.num_fewshot
    shared = _blocks(entry.prompt_tokens * examples / (examples + 1))
    if entry.kind == "loglikelihood":
        return shared + (entry.requests_per_item - 1) * _blocks(entry.prompt_tokens)
    return shared * entry.requests_per_item


def _blocks(tokens: float) -> float:
    """Return the tokens of the whole blocks of a prompt."""
    return tokens // CACHE_BLOCK * CACHE_BLOCK


def built_work(dataset: Dataset, built: DatasetRequests) -> Work:
    """Return the work of a dataset's sample of built requests.

    Output tokens and metric seconds are predicted.
    """
    entry = find(dataset)
    items = dataset.in_sample(built.items, len(built.task_items))
    share = items / max(1, built.items)
    limit_sum = built.max_output_tokens * share
    output = limit_sum * WRITTEN_SHARE
    longest = float(built.longest_output_tokens)
    metric = built.metric_cpu_seconds * share
    if entry is not None:
        output = min(limit_sum, built.generate_requests * share * entry.output_tokens)
        longest = min(longest, _longest(entry))
        metric = items * entry.metric_cpu_seconds
    return Work(
        items=items,
        requests=built.requests * share,
        prompt_tokens=built.prompt_tokens * share,
        output_tokens=output,
        longest_output_tokens=longest,
        cached_tokens=built.cached_tokens * share,
        metric_cpu_seconds=metric,
    )


def expected_context(dataset: Dataset) -> int:
    """Return the tokens of context that a dataset is expected to need, before it is built.

    Its longest prompt is assumed to have `LONGEST` times the tokens of the mean one. What its
    settings say of lengths counts first.
    """
    entry = find(dataset)
    limit = dataset.gen_kwargs.get("max_gen_toks", entry.max_output_tokens if entry else 0)
    answer = limit if type(limit) is int and limit > 0 else DEFAULT_ANSWER
    given = dataset.metadata.get("max_seq_lengths")  # of RULER and the like
    told = [each for each in given if type(each) is int] if isinstance(given, list) else []
    turns = _in_turn(entry) if entry else 1
    mean = entry.prompt_tokens if entry else GUESSED_PROMPT
    return max(round(LONGEST * mean + turns * answer), *told, 0)


def guessed_work(dataset: Dataset, items: int) -> Work:
    """Return the work of a dataset with this many items: short questions and answers assumed."""
    items = min(items, dataset.limit or items)
    items = dataset.in_sample(items)
    requests = float(items * (dataset.repeats or 1))
    return Work(
        items=items,
        requests=requests,
        prompt_tokens=GUESSED_PROMPT * requests,
        output_tokens=100 * requests,
        longest_output_tokens=400,
    )

"""Choose the samples of a dataset that people see, and show one in few words.

These are some items, wrong ones, or those that differ between two runs.

An item is right if the main metric of its task is 1 for it, and wrong if it is less: see
`main_metric.py`. Where the metric has other values, such as a perplexity or a judge's rating, the
dataset is graded: its items are better or worse.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from coordinate_eval.coordinator.report.main_metric import task_metric
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.confined.messages import LoggedSample, LoggedVerdict
from coordinate_eval.records import DatasetResults

MOST_CHARACTERS = 2000
"""Characters of a prompt or an answer that are shown. Programs get all, as JSON."""

MOST_CHOICES = 12
"""Choices or answers of one item that are shown."""


class Shown(NamedTuple):
    """The verdict on an item that people see: that of its task's main metric."""

    position: int
    """Among all verdicts."""
    metric: str
    value: float
    doc_hash: str

    @property
    def right(self) -> bool:
        """Return whether the item has full marks."""
        return self.value >= 1


class Card(NamedTuple):
    """A sample as people read it: a title, and parts with a name each."""

    title: str
    parts: list[tuple[str, str]]


def shown_verdicts(
    verdicts: Sequence[LoggedVerdict], results: DatasetResults, metric: str | None = None
) -> dict[int, Shown]:
    """Return by item the verdict of its task's main metric, or of the metric named."""
    wanted = {task: task_metric(results, task, metric) for task in {v.task for v in verdicts}}
    found = {}
    for position, verdict in enumerate(verdicts):
        name, _, filter_name = (wanted[verdict.task] or "").rpartition(",")
        if name in verdict.metrics and filter_name == verdict.filter:
            value = verdict.metrics[name]
            found[verdict.item] = Shown(position, f"{name},{filter_name}", value, verdict.doc_hash)
    return found


def is_graded(
    shown: Mapping[int, Shown], results: DatasetResults, verdicts: Sequence[LoggedVerdict]
) -> bool:
    """Return whether items are better or worse, in place of right or wrong.

    Raises:
        UserError: no item has a verdict.
    """
    if not shown:
        raise UserError(
            f"the items of dataset {results.dataset!r} have no verdicts: leave out --wrong and "
            "--diff"
        )
    return bool(results.judge) or any(
        not (_more_is_better(verdict, results, verdicts) and 0 <= verdict.value <= 1)
        for verdict in shown.values()
    )


def worst_first(
    shown: Mapping[int, Shown], results: DatasetResults, verdicts: Sequence[LoggedVerdict]
) -> list[int]:
    """Return all items of a graded dataset, the worst first. What is no number is worst."""

    def goodness(item: int) -> float:
        value = shown[item].value
        if math.isnan(value):
            return -math.inf
        return value if _more_is_better(shown[item], results, verdicts) else -value

    return sorted(shown, key=lambda item: (goodness(item), item))


def _more_is_better(
    verdict: Shown, results: DatasetResults, verdicts: Sequence[LoggedVerdict]
) -> bool:
    """Return whether more of the metric is better, as the task says."""
    task, name = verdicts[verdict.position].task, verdict.metric.rpartition(",")[0]
    return bool(results.higher_is_better.get(task, {}).get(name, True))


def differing(
    ours: Mapping[int, Shown], theirs: Mapping[int, Shown], dataset: str, *, graded: bool
) -> list[int]:
    """Return the items whose verdicts differ in two runs.

    These are the items that one run gets right and the other wrong. Of a graded dataset they are
    those with different values, the largest difference first.

    Raises:
        UserError: the two runs have other items, or are measured in another way.
    """
    if {n: (s.doc_hash, s.metric) for n, s in ours.items()} != {
        n: (s.doc_hash, s.metric) for n, s in theirs.items()
    }:
        raise UserError(
            f"dataset {dataset!r} is not the same in these two runs: their items or metrics differ"
        )
    if not graded:
        return sorted(item for item in ours if ours[item].right != theirs[item].right)
    gaps = {item: abs(ours[item].value - theirs[item].value) for item in ours}
    # A value that is no number differs from all others, and from none more than by that.
    gaps = {item: math.inf if math.isnan(gap) else gap for item, gap in gaps.items()}
    return sorted((item for item in gaps if gaps[item]), key=lambda item: (-gaps[item], item))


def select(
    known: Iterable[int], wanted: Sequence[int], allowed: Iterable[int], most: int | None, name: str
) -> list[int]:
    """Return the items to show: those allowed, in their order, that are wanted, at most so many.

    Where none is wanted by its number, all are.

    Raises:
        UserError: a wanted item does not exist.
    """
    every = sorted(known)
    if missing := set(wanted) - set(every):
        raise UserError(
            f"dataset {name!r} has no item {min(missing)}: it has items 0 to {every[-1]}"
        )
    chosen = set(wanted or every)
    return [item for item in dict.fromkeys(allowed) if item in chosen][:most]


def positions_of(verdicts: Sequence[LoggedVerdict], items: Iterable[int]) -> list[int]:
    """Return the positions of all verdicts on these items, in the harness's order."""
    wanted = set(items)
    return [n for n, verdict in enumerate(verdicts) if verdict.item in wanted]


def card(
    sample: LoggedSample, shown: Shown | None, *, run: str = "", said_by: str = "verdict"
) -> Card:
    """Return a sample as people read it, without the middle of what is long.

    Args:
        sample: what the harness noted.
        shown: its verdict, if it has one.
        run: whose answer it is, where there are two.
        said_by: name of what was said about the answer.
    """
    found = json.loads(sample.content)
    arguments = [[*each.values()] for each in found["arguments"].values()]
    words = [run, f"item {sample.item}", f"{sample.task}, document {found['doc_id']}"]
    if shown is not None:
        verdict = "right: " if shown.right else "wrong: " if shown.value == 0 else ""
        is_verdict = said_by == "verdict" and shown.value <= 1
        metric = f"{shown.metric.removesuffix(',none')} {shown.value:g}"
        words.append(f"{verdict}{metric}" if is_verdict else metric)
    elif said_by == "judge":
        words.append(_ratings(found))
    first = arguments[0] if arguments and arguments[0] else [""]
    prompt = str(first[0])
    scored = len(arguments) > 1 or isinstance(first[-1], str)
    parts = [("prompt", _end_of(prompt))]
    target = str(found["target"])
    if scored:
        name = "choices (→ the likeliest)" if len(arguments) > 1 else "log-likelihood"
        parts.append((name, "\n".join(_choices(arguments, found["resps"]))))
        target = _named(target, arguments)
    else:
        parts += _answers(found["resps"], found["filtered_resps"], first[2:3])
    if target:
        parts.append(("target", _both_ends(target)))
    parts += [(said_by, _both_ends(said)) for said in sample.words[:MOST_CHOICES]]
    return Card(" · ".join(filter(None, words)), parts)


def _ratings(found: Mapping[str, Any]) -> str:
    """Return the values of the first metric of a judged item, one for each verdict."""
    name = next(iter(found["metrics"]), "")
    values = found.get(name, [])
    if not isinstance(values, list) or not all(isinstance(each, int | float) for each in values):
        return ""
    return f"{name} {', '.join(f'{each:g}' for each in values)}" if values else "no verdict"


def _choices(arguments: Sequence[Sequence[Any]], responses: Sequence[Any]) -> Iterator[str]:
    """Yield the continuations of an item with their log-probabilities; the likeliest is marked."""
    values = [_nats(each) for each in responses]
    best = max(range(len(values)), key=values.__getitem__, default=0)
    for number, (given, value) in enumerate(zip(arguments, values, strict=False)):
        if number < MOST_CHOICES and given:
            text = " ".join(_both_ends(str(given[-1]), MOST_CHARACTERS // 10).split())
            yield f"{'→' if number == best and len(values) > 1 else ' '} {value:9.3f}  {text}"
    if len(values) > MOST_CHOICES:
        yield f"  … {len(values) - MOST_CHOICES} more"


def _named(target: str, arguments: Sequence[Sequence[Any]]) -> str:
    """Return a target with the choice that it is the number of, if it is one."""
    number = int(target) if target.isascii() and target.isdigit() and len(target) < 4 else -1
    if len(arguments) > 1 and 0 <= number < len(arguments) and arguments[number]:
        return f"{target}: {str(arguments[number][-1]).strip()}"
    return target


def _nats(response: Any) -> float:  # noqa: ANN401  text in lists, whatever it says
    """Return the log-probability in a response; NaN if what it says is no number."""
    try:
        return float(_flat(response)[0])
    except (ValueError, IndexError):
        return math.nan


def _answers(
    responses: Sequence[Any], filtered: Sequence[Any], between: Sequence[Any]
) -> Iterator[tuple[str, str]]:
    """Yield the answers to an item, and what its filter made of them.

    `between` has the text that comes after each answer of a conversation but the last.
    """
    given, turns = _flat(responses), _flat(between)
    for number, text in enumerate(given[:MOST_CHOICES]):
        name = "answer" if len(given) == 1 else f"answer {number + 1} of {len(given)}"
        yield name, _both_ends(text)
        if number < len(turns):
            yield "then", _both_ends(turns[number].strip())
    taken = _flat(filtered)
    if taken != given:
        yield "taken from it", _both_ends("\n".join(taken[:MOST_CHOICES]))


def _flat(value: Any) -> list[str]:  # noqa: ANN401  lists in lists of texts
    """Return all texts in nested lists."""
    return [t for each in value for t in _flat(each)] if isinstance(value, list) else [str(value)]


def _end_of(text: str) -> str:
    """Return a text without its beginning if it is long: there, prompts have their examples."""
    left_out = len(text) - MOST_CHARACTERS
    return f"[{left_out:,} characters before] … {text[left_out:]}" if left_out > 0 else text


def _both_ends(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return a text without its middle if it is long."""
    left_out = len(text) - most
    if left_out <= 0:
        return text
    return f"{text[: most // 2]} … [{left_out:,} characters] … {text[-(most // 2) :]}"

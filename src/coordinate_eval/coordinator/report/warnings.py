"""Warnings about the scores of a dataset: odd answers, and examples that give answers away."""

from collections.abc import Mapping
from typing import Any

from coordinate_eval._format import listed, plural
from coordinate_eval.records import DatasetResults, Outputs, OwnAnswers

WORTH_SAYING = 0.1
"""Share of a dataset's answers that has to be degenerate before people are told."""


_DEGENERATE = {
    "empty": "are empty",
    "repeated": "are mostly repetition",
    "other_script": "are in another script than the prompts",
    "cut": "are cut by length",
}


_NO_VERDICT = {
    "refused": "refused",
    "empty": "without words",
    "thinking_unended": "with thinking that does not end",
    "out_of_range": "with a rating that the rubric does not allow",
}


def warnings(found: DatasetResults) -> list[str]:
    """Return what people should know who read the scores of a dataset."""
    return [
        *own_answers(found.dataset, {n: e for n, e in found.own_answers.items() if e.own}),
        *degenerate(found.dataset, found.outputs),
        *odd_answers(found.dataset, found.judge),
    ]


def own_answers(dataset: str, tasks: Mapping[str, OwnAnswers]) -> list[str]:
    """Return how many items of a dataset show their own answer, if examples are evaluated items."""
    if not tasks:
        return []
    showing = {name: each for name, each in tasks.items() if each.own}
    names = list(showing or tasks)
    where = dataset if names == [dataset] else f"{dataset} ({listed(names)})"
    if not showing:
        return [
            f"{where}: few-shot examples are other items of those that are evaluated; no item "
            "shows its own answer"
        ]
    own, items = (sum(getattr(e, count) for e in showing.values()) for count in ("own", "items"))
    return [
        f"{where}: {own:,} of {items:,} items show their own answer among their few-shot examples; "
        "in the task, name a `fewshot_split` that is not evaluated, or set `num_fewshot: 0`"
    ]


def degenerate(dataset: str, outputs: Outputs | None) -> list[str]:
    """Return what is wrong with so many generated answers of a dataset that people should look."""
    if outputs is None or not outputs.responses:
        return []
    shares = {kind: getattr(outputs, kind) / outputs.responses for kind in _DEGENERATE}
    return [
        f"{dataset}: {share:.0%} of answers {_DEGENERATE[kind]}"
        for kind, share in shares.items()
        if share >= WORTH_SAYING
    ]


def often_odd(odd: Mapping[str, int], answers: int) -> list[str]:
    """Return what is odd about so many answers of a judge that people should look."""
    words = _NO_VERDICT | {"cut": "cut at their limit of tokens"}
    return [
        f"{count:,} {words.get(kind) or kind.replace('_', ' ')}"
        for kind, count in odd.items()
        if count >= WORTH_SAYING * answers
    ]


def odd_answers(dataset: str, judge: Mapping[str, Any]) -> list[str]:
    """Return what is odd about a judge's answers: those without a verdict, cut, or sampled freely.

    All questions without a verdict are worth saying.
    """
    odd, lines = {"refused": judge.get("refused", 0), **judge.get("odd", {})}, []
    questions = judge.get("questions", 0)
    if missing := judge.get("without_verdict", 0):
        why = [f"{odd[kind]:,} {words}" for kind, words in _NO_VERDICT.items() if odd.get(kind)]
        lines.append(
            f"{dataset}: no verdict on {missing:,} of {plural(questions, 'question')} to the judge"
            f"{' (' + ', '.join(why) + ')' if why else ''}: they are in no mean; "
            f"`coordinate-eval samples --dataset {dataset}` shows its words"
        )
    if (cut := odd.get("cut", 0)) and cut >= WORTH_SAYING * questions:
        lines.append(
            f"{dataset}: {cut:,} of {plural(questions, 'answer')} of the judge ended at the limit "
            "of their tokens: raise max_tokens of the rubric"
        )
    lines += [
        f"{dataset}: the judge was asked {count:,} of {plural(questions, 'question')} without "
        f"{kind.removeprefix('without_')}, which its server does not support"
        for kind, count in odd.items()
        if kind.startswith("without_")
    ]
    return lines

"""The record of a dataset's results: its scores, and signs in its answers that something is wrong.

A base model that gets a chat prompt, a wrong stop string or too few tokens often shows in its
answers first: they are empty, go round in circles, switch to another script, or end because no
tokens are left.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from typing import Any

from coordinate_eval.records import Dataset, DatasetResults, Outputs, Response


def dataset_results(
    dataset: Dataset, *, top: str | None, items: int, evaluated: Mapping[str, Any]
) -> DatasetResults:
    """Return the results in the harness's shape, with names after the dataset and JSON values.

    `top` is the harness's name of the dataset's own task or group, None for a tag. NaN and
    infinite numbers become "N/A", the harness's own value for a missing standard error.
    """
    rename = _naming(dataset, top)

    def table(field: str) -> dict[str, Any]:
        return {rename(name): _plain(entry) for name, entry in evaluated.get(field, {}).items()}

    return DatasetResults(
        dataset=dataset.name,
        items=items,
        results=table("results"),
        groups=table("groups"),
        group_subtasks={
            rename(name): [*map(rename, members)]
            for name, members in evaluated.get("group_subtasks", {}).items()
        },
        higher_is_better=table("higher_is_better"),
        n_shot=table("n-shot"),
        n_samples=table("n-samples"),
        versions=table("versions"),
        harness=metadata.version("lm_eval"),
    )


def result_names(dataset: Dataset, *, top: str | None, names: Iterable[str]) -> list[str]:
    """Return the names in the dataset's results for these tasks and groups of the harness."""
    return [*map(_naming(dataset, top), names)]


def _naming(dataset: Dataset, top: str | None) -> Callable[[str], str]:
    own_names = dataset.name == (dataset.task or dataset.name)

    def rename(name: str) -> str:
        if name == top:
            return dataset.name
        return name if own_names else f"{dataset.name}/{name}"

    return rename


def _plain(value: Any) -> Any:  # noqa: ANN401  metrics return whatever they like
    """Return a value of a metric as one that JSON can hold."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(entry) for entry in value]
    if hasattr(value, "tolist"):  # numpy's scalars and arrays, torch's tensors
        return _plain(value.tolist())
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else "N/A"
    return value if value is None or isinstance(value, bool | int | str) else str(value)


MOST_REPEATED = 0.5
"""Share of an answer's 4-grams that came before in it, above which it is repetition.

The measure is seq-rep-4 of S. Welleck et al., "Neural Text Generation with Unlikelihood Training"
(2020). Texts that people wrote are below 0.1 there, and greedy decoding that loops is near 1.
"""

LEAST_WORDS = 16
"""Words of an answer that are enough to call it repetition."""

LEAST_LETTERS = 20
"""Letters of an answer that are enough to tell its script."""

LEAST_SHARE = 0.05
"""Share of a task's letters that makes a script one of the task's own."""

SEEN_DOCUMENTS = 50
"""Documents of a task whose letters are counted."""

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff"
"""Scripts without spaces between words: of South-East Asia, Chinese and Japanese."""

# Without a space, each character counts as a word, and a long word as several.
_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]{{1,12}}")


def is_repeated(text: str) -> bool:
    """Return whether most of a text came before in the same text."""
    words = _WORD.findall(text)
    if len(words) < LEAST_WORDS:
        return False
    grams = list(zip(words, words[1:], words[2:], words[3:], strict=False))
    return 1 - len(set(grams)) / len(grams) > MOST_REPEATED


def letters(text: str) -> Counter[str]:
    """Return how many letters of each script a text has."""
    found: Counter[str] = Counter()
    if text.isascii():
        found["LATIN"] = sum(map(str.isalpha, text))
        return found
    for character, count in Counter(text).items():
        if script := _script(character):
            found[script] += count
    return found


@cache
def _script(character: str) -> str:
    """Return the script of a letter, an empty text for all other characters.

    The name of a letter begins with its script, by the Unicode standard's own rule for names.
    Chinese and Japanese count as one.
    """
    if not character.isalpha():
        return ""
    name = unicodedata.name(character, "").removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ")
    script = name.partition(" ")[0]
    return "CJK" if script in ("HIRAGANA", "KATAKANA") else script


def scripts_of(texts: Iterable[str]) -> list[str]:
    """Return the scripts of some prompts and documents of a task, in alphabetical order."""
    found: Counter[str] = Counter()
    for text in texts:
        found += letters(text)
    return sorted(s for s, count in found.items() if count >= LEAST_SHARE * found.total())


def texts_in(document: Any) -> Iterator[str]:  # noqa: ANN401  whatever a task has for one
    """Yield all texts in a document."""
    if isinstance(document, str):
        yield document
    elif isinstance(document, Mapping):
        for value in document.values():
            yield from texts_in(value)
    elif isinstance(document, list | tuple):
        for value in document:
            yield from texts_in(value)


def is_other_script(text: str, scripts: Sequence[str]) -> bool:
    """Return whether most letters of a text are of other scripts than these."""
    if text.isascii() and "LATIN" in scripts:
        return False
    found = letters(text)
    total = found.total()
    return total >= LEAST_LETTERS and sum(found[s] for s in scripts) < total / 2


class ReadResponses(Iterable[Response]):
    """Responses that count, as they are read, how many were cut by length."""

    def __init__(self, responses: Iterable[Response]) -> None:
        self._responses = responses
        self.cut = 0

    def __iter__(self) -> Iterator[Response]:
        self.cut = 0
        for response in self._responses:
            ends = [response.finish, *(turn.finish for turn in response.turns)]
            self.cut += "length" in ends
            yield response


def tally(
    answers: Iterable[tuple[str, list[str]]], cut: int, scripts: Mapping[str, list[str]]
) -> Outputs | None:
    """Count what is wrong with generated answers; None if there are none.

    Args:
        answers: the task of each answer, and its text; of a conversation, those of its turns.
        cut: how many were cut by length.
        scripts: those of each task; answers of a task that it lacks are in the right one.
    """
    counts: Counter[str] = Counter()
    for task, turns in answers:
        counts["responses"] += 1
        counts["empty"] += not all(map(str.strip, turns))
        counts["repeated"] += any(map(is_repeated, turns))
        own = scripts.get(task)
        counts["other_script"] += bool(own) and any(is_other_script(t, own or ()) for t in turns)
    return Outputs(**counts, cut=cut) if counts["responses"] else None

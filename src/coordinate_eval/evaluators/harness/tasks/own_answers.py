"""Items whose few-shot examples show their own answer.

Where a task names no split for its examples, the harness may draw them from the evaluated items,
and leaves out an item's own document only in some cases. Its prompts are not changed here, or
scores would not be the harness's: these items are counted, so that people are told.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from lm_eval.api.task import ConfigurableTask, Task

from coordinate_eval.records import OwnAnswers

_Turn = dict[str, Any]
"""The arguments of a question: `q`, its choices `c`, and in an example its answer `a`."""


class Watch:
    """Sees which examples each item gets while a task makes its prompts."""

    def __init__(self, task: Task) -> None:
        """Prepare to watch a task. Tasks with classes of their own that draw otherwise show 0."""
        self._task = task
        self._items = self._own = 0
        self._turns: list[_Turn] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count inside the block, in which the task makes its prompts."""
        task = self._task
        if not _has_examples(task):
            yield
            return
        of_item, turn = task.fewshot_context, task.build_qa_turn

        def fewshot_context(doc: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401  as there
            self._turns = []
            made = of_item(doc, *args, **options)
            self._items += 1
            with suppress(TypeError, ValueError, LookupError):  # turns of another form
                self._own += self._shows_own(doc)
            return made

        def build_qa_turn(**options: Any) -> Any:  # noqa: ANN401  as there
            self._turns.append(options)
            return turn(**options)

        task.fewshot_context, task.build_qa_turn = fewshot_context, build_qa_turn
        try:
            yield
        finally:
            del task.fewshot_context, task.build_qa_turn

    def found(self) -> OwnAnswers | None:
        """Return how many items show their own answer; None if no example is an evaluated item."""
        if not self._own and not _drawn_from_items(self._task):
            return None
        return OwnAnswers(items=self._items, own=self._own)

    def _shows_own(self, doc: Any) -> bool:  # noqa: ANN401  whatever a task has for one
        """Return whether an example has the question and the answer of this item.

        The same text counts, whatever split it comes from, and however documents were changed.
        """
        asked = [turn for turn in self._turns if "a" not in turn]
        questions = [turn["q"] for turn in asked]
        alike = [turn for turn in self._turns if "a" in turn and turn["q"] in questions]
        if not alike:
            return False
        # One question for each choice: the examples show that of the right one.
        right = asked[self._task.doc_to_text(doc) if self._task.multiple_input else 0]
        answer = _words(right.get("c"), self._task.doc_to_target(doc))
        return any(
            turn["q"] == right["q"] and _words(turn.get("c"), turn["a"]) == answer for turn in alike
        )


def _words(choices: Any, answer: Any) -> Any:  # noqa: ANN401  whatever a task has for one
    """Return the answer, in words if it is the number of a choice."""
    numbered = type(answer) is int and isinstance(choices, list) and 0 <= answer < len(choices)
    return choices[answer] if numbered else answer


def _has_examples(task: Task) -> bool:
    return isinstance(task, ConfigurableTask) and bool(task.config.num_fewshot)


def _drawn_from_items(task: Task) -> bool:
    """Return whether the examples come from the split that is evaluated."""
    if not _has_examples(task):
        return False
    config, of_examples = task.config, task.fewshot_cfg
    split = of_examples.split
    if split is None and of_examples.samples is None:
        split = config.training_split or config.validation_split or config.test_split
    return split is not None and split == (config.test_split or config.validation_split)

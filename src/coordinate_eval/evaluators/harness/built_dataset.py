"""All prompts of a dataset, built by the harness, and the responses matched to them.

Where a task names no split for its examples, the harness may draw them from the evaluated items,
and leaves out an item's own document only in some cases. Its prompts are not changed here, or
scores would not be the harness's: items that show their own answer are counted, so that people are
told (`Watch`).
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask, Task

from coordinate_eval.errors import RecordError, UserError
from coordinate_eval.evaluators.harness.answered_dataset import (
    Answered,
    AnsweredDataset,
    Ask,
    already_built,
)
from coordinate_eval.evaluators.harness.prompts.conversation import Chat, Conversation
from coordinate_eval.evaluators.harness.prompts.language_models import (
    Generation,
    Prompt,
    RequestModel,
)
from coordinate_eval.evaluators.harness.tasks.made_from import ItemDigest, item_digests
from coordinate_eval.evaluators.harness.tasks.task_loader import LoadedTasks, in_words
from coordinate_eval.evaluators.harness.tasks.task_names import no_chat_template
from coordinate_eval.records import Dataset, OwnAnswers, Request, RequestKind, Response

_Identity = tuple[str, int, int, int, int]


class BuiltDataset(AnsweredDataset):
    """One dataset with all instances that the harness makes of it."""

    def __init__(self, dataset: Dataset, loaded: LoadedTasks, model: RequestModel) -> None:
        """Build the instances. Call it inside `harness_session`, directly after loading.

        Raises:
            UserError: a task has no items, or its own code fails.
        """
        super().__init__(dataset, loaded, model)
        self.asks: list[Ask] = []
        self.items = 0
        self.own_answers = {}
        for name, task in loaded.tasks.items():
            watch = Watch(task)
            with watch.watching():
                _build_instances(name, task, dataset, self._conversations[name], model)
            if found := watch.found():
                self.own_answers[name] = found
            self._add(name, task.instances)
            # `evaluate` would build them again, with random generators in another state.
            task.build_all_requests = already_built
        self._keep_random_states()
        templates = [each.turn_template for each in self._conversations.values()]
        self.plain_chat = dataset.chat_template and any(templates) and not model.has_chat_template

    def _add(self, task: str, instances: Sequence[Instance]) -> None:
        asked: dict[int, int] = {}
        places: dict[int, int] = {}
        for instance in instances:
            doc = instance.doc_id
            place = places.setdefault(doc, len(places))
            index = asked.get(doc, 0)
            asked[doc] = index + 1
            digest = prompt_hash(instance)
            self.asks.append(Ask(instance, self.items + place, task, doc, index, digest))
        self.items += len(places)

    def documents(self) -> Iterator[tuple[str, int, Any]]:
        """Yield task, number and content of each item's document, in item order."""
        items = {ask.item: ask for ask in self.asks}
        yield from ((ask.task, ask.doc, ask.instance.doc) for ask in items.values())

    def digests(self) -> list[ItemDigest]:
        """Return a digest of each item without its requests; none if a document has no digest."""
        # What making the prompts has done to a document is part of it.
        documents = {ask.item: ask.instance.doc for ask in self.asks}
        return item_digests(documents.values())

    def requests(self) -> Iterator[Request]:
        """Yield every request, in item order.

        Raises:
            UserError: a prompt does not suit this model, for example because it is too long.
        """
        for ask in self.asks:
            prompts = self._prompts(ask)
            for repeat in range(ask.instance.repeats):
                for window, prompt in enumerate(prompts):
                    yield self._request(ask, prompt, repeat, window)

    def _prompts(self, ask: Ask) -> list[Prompt]:
        try:
            return self.model.prompts(ask.instance)
        except Exception as error:
            raise UserError(f"dataset {self._dataset.name!r}: {ask}: {in_words(error)}") from error

    def _request(self, ask: Ask, prompt: Prompt, repeat: int, window: int) -> Request:
        generation = prompt.generation
        return Request(
            dataset=self._dataset.name,
            item=ask.item,
            task=ask.task,
            doc=ask.doc,
            index=ask.index,
            repeat=repeat,
            window=window,
            prompt_hash=ask.prompt_hash,
            kind=RequestKind.GENERATE if generation else RequestKind.LOGLIKELIHOOD,
            tokens=prompt.tokens,
            continuation=prompt.continuation,
            max_tokens=generation.max_tokens if generation else 0,
            stop=generation.stop if generation else [],
            sampling=generation.sampling if generation else {},
            follow_ups=prompt.follow_ups,
        )

    def rewind(self) -> None:
        """Restore the random generators, and remove all responses."""
        for ask in self.asks:
            ask.instance.resps = []
            ask.instance.filtered_resps = {}
        super().rewind()

    def answered(self, responses: Iterable[Response], *, whole: bool) -> Answered:
        """Return the instances with their responses, matched by their prompts."""
        by_identity = {response.identity(): response for response in responses}
        items = {response.item for response in by_identity.values()}
        answered = [
            (ask, [self._take(ask, repeat, by_identity) for repeat in range(ask.instance.repeats)])
            for ask in self.asks
            if whole or ask.item in items
        ]
        if by_identity:
            task, doc, *_ = next(iter(by_identity))
            raise RecordError(
                f"dataset {self._dataset.name!r}: {len(by_identity)} responses have no request, "
                f"such as one to task {task!r}, document {doc}; {_CHANGED}"
            )
        return answered

    def _take(self, ask: Ask, repeat: int, by_identity: dict[_Identity, Response]) -> Any:  # noqa: ANN401  as in `Answered`
        rolling = ask.instance.request_type == "loglikelihood_rolling"
        windows = range(len(self._prompts(ask)) if rolling else 1)
        return self._value(ask, [self._pop(ask, repeat, n, by_identity) for n in windows])

    def _generation(self, ask: Ask) -> Generation:
        return self.model.generation(ask.instance.args[1])

    def _pop(
        self, ask: Ask, repeat: int, window: int, by_identity: dict[_Identity, Response]
    ) -> Response:
        identity = (ask.task, ask.doc, ask.index, repeat, window)
        response = by_identity.pop(identity, None)
        where = f"dataset {self._dataset.name!r}: the response to {ask}"
        if response is None:
            raise RecordError(
                f"{where}, repeat {repeat}, window {window} is missing; run its shard again"
            )
        if response.prompt_hash != ask.prompt_hash:
            raise RecordError(
                f"{where} answers another prompt (hash {response.prompt_hash}, asked "
                f"{ask.prompt_hash}); {_CHANGED}"
            )
        return response


_CHANGED = (
    "the task, its data or its options have changed since its requests were built: start a new run"
)


def prompt_hash(instance: Instance) -> str:
    """Return 16 hex digits of the sha256 of a prompt, its generation arguments and follow-ups."""
    asked = json.dumps(list(instance.args), sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(asked.encode()).hexdigest()[:16]


def _build_instances(
    name: str,
    task: Any,  # noqa: ANN401  lm_eval has no types
    dataset: Dataset,
    conversation: Conversation,
    model: RequestModel,
) -> None:
    chat: Chat | None = None
    if dataset.chat_template and not (conversation.turn_template or model.has_chat_template):
        raise UserError(no_chat_template(dataset.name))
    try:
        if dataset.chat_template:
            has_one = conversation.turn_template is None or model.has_chat_template
            chat = model.apply_chat_template if has_one else conversation.plain_chat
        task.build_all_requests(
            limit=dataset.limit,
            system_instruction=dataset.system_instruction,
            apply_chat_template=dataset.chat_template,
            fewshot_as_multiturn=dataset.fewshot_as_multiturn,
            chat_template=chat,
            tokenizer_name=model.tokenizer_name if dataset.chat_template else "",
        )
        for instance in task.instances:
            conversation.complete(instance, chat)
    except Exception as error:
        where = f"dataset {dataset.name!r}: task {name!r}"
        if getattr(task, "_instances", None) == []:
            raise UserError(f"{where} has no items (limit {dataset.limit})") from error
        raise UserError(f"{where} cannot make its prompts: {in_words(error)}") from error


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

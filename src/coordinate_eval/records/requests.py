"""An engine's input and output: requests by item, the index of their file, and responses."""

import itertools
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from coordinate_eval.records.base import Record, schema


class RequestKind(StrEnum):
    """The two tasks of an engine: write a text, or score one."""

    GENERATE = "generate"
    LOGLIKELIHOOD = "loglikelihood"


class Key(Record):
    """The identity of one prompt. A request and its response have the same key."""

    dataset: str
    item: int = Field(description="position in the dataset, from 0")
    task: str = Field(description="leaf task of the harness")
    doc: int = Field(description="document id within the leaf task")
    index: int = Field(
        default=0, description="number of the request within its document, such as the choice"
    )
    repeat: int = Field(default=0, description="number of the sample of this request")
    window: int = Field(default=0, description="number of the window of a rolling log-likelihood")
    prompt_hash: str = Field(description="sha256 of the harness's prompt, first 16 hex digits")

    def identity(self) -> tuple[str, int, int, int, int]:
        """Return the fields that distinguish a request from all others of its dataset."""
        return self.task, self.doc, self.index, self.repeat, self.window


class Request(Key):
    """One prompt, tokenized and truncated, so that an engine needs no tokenizer."""

    kind: RequestKind
    tokens: list[int] = Field(description="prompt, or the context of a log-likelihood")
    continuation: list[int] = Field(default=[], description="scored tokens (log-likelihood)")
    max_tokens: int = Field(default=0, description="most tokens to generate")
    stop: list[str] = Field(default=[], description="strings at which generation may end")
    sampling: dict[str, float] = Field(
        default={}, description="temperature, top_p, top_k, seed …; empty means greedy"
    )
    follow_ups: list[list[int]] = Field(
        default=[],
        description="further turns of a conversation: tokens that come after prompt and answer, "
        "to be continued in the same way",
    )

    @property
    def turns(self) -> int:
        """Count the answers that it asks for."""
        return 1 + len(self.follow_ups)


class Asked(Record):
    """One request of an item, without what all requests of the item share.

    Lists and mappings have factories as defaults: pydantic would copy a plain default deeply.
    """

    index: int = 0
    repeat: int = 0
    window: int = 0
    prompt_hash: str
    kind: RequestKind
    context: int = Field(default=0, description="position of its tokens in the item's contexts")
    continuation: list[int] = Field(default_factory=list)
    max_tokens: int = 0
    stop: list[str] = Field(default_factory=list)
    sampling: dict[str, float] = Field(default_factory=dict)
    follow_ups: list[list[int]] = Field(default_factory=list)


class ItemRequests(Record):
    """A line of `requests/<dataset>.jsonl`: all requests of an item. Choices share a context."""

    item: int
    task: str
    doc: int
    contexts: list[list[int]] = Field(description="tokens, each list once")
    requests: list[Asked]

    @classmethod
    def of(cls, requests: Sequence[Request]) -> "ItemRequests":
        """Return the requests of one item as one record."""
        first = requests[0]
        contexts: list[list[int]] = []
        asked = []
        for request in requests:
            known = (n for n, tokens in enumerate(contexts) if tokens == request.tokens)
            context = next(known, len(contexts))
            if context == len(contexts):
                contexts.append(request.tokens)
            given = {name: getattr(request, name) for name in _OF_ASKED}
            asked.append(Asked.model_construct(**given, context=context))
        return cls.model_construct(
            item=first.item, task=first.task, doc=first.doc, contexts=contexts, requests=asked
        )

    def of_dataset(self, dataset: str) -> Iterator[Request]:
        """Yield the requests. Those that share a context share its list in memory."""
        shared: dict[str, Any] = {
            "dataset": dataset,
            "item": self.item,
            "task": self.task,
            "doc": self.doc,
        }
        for asked in self.requests:
            given = {name: getattr(asked, name) for name in _OF_ASKED}
            yield Request.model_construct(**shared, **given, tokens=self.contexts[asked.context])


_OF_ASKED = Asked.model_fields.keys() - {"context"}


class OwnAnswers(Record):
    """A leaf task's items that show their own answer among their few-shot examples."""

    items: int = Field(ge=0, description="that have examples")
    own: int = Field(ge=0, description="of these, with their own question and answer among them")


class DatasetRequests(Record):
    """The index of `requests/<dataset>.jsonl`, written after that file."""

    schema_: Literal["coordinate-eval/requests@2"] = schema("coordinate-eval/requests@2")

    dataset: str
    key: str = Field(description="cache key: hash of everything the requests depend on")
    items: int
    requests: int = Field(description="each turn of a conversation is one")
    prompt_tokens: int = Field(
        description="sum over requests, continuation included; a later turn has those before it, "
        "without the answers"
    )
    cached_tokens: int = Field(
        default=0, description="of these, in whole blocks shared with the request before"
    )
    generate_requests: int
    max_output_tokens: int = Field(
        description="sum of the output limits of all generating requests"
    )
    longest_output_tokens: int = Field(
        description="largest output limit of one request, or of all turns of a conversation"
    )
    context_tokens: int = Field(
        default=0, description="of context that its longest request needs; 0 if not known"
    )
    cut_prompts: int = Field(
        default=0, description="prompts longer than the context, which have lost their beginning"
    )
    largest_token: int = Field(
        default=-1, description="largest token id of any request; -1 if not known"
    )
    asks: bool = Field(description="whether its metric asks questions")
    judged: bool = Field(default=False, description="whether it asks a judge")
    question_ids: list[str] = Field(
        default=[],
        description="of each item, by which a baseline's answer is found, if it needs one",
    )
    judge_example: str = Field(
        default="",
        description="a question to the judge about a made-up answer to the first item, as the "
        "content of a `Question`",
    )
    languages: list[str] = Field(
        default=[], description="languages of the programs that its metric asks for"
    )
    metric_cpu_seconds: float = Field(
        default=0.0, description="CPU seconds of usual programs in these languages, one a request"
    )
    plain_chat: bool = Field(
        default=False,
        description="the checkpoint has no chat template: the tasks' own turn_template stood in",
    )
    own_answers: dict[str, OwnAnswers] = Field(
        default={},
        description="leaf tasks whose few-shot examples are drawn from the evaluated items, or "
        "show an item's own answer",
    )
    built: float | None = Field(default=None, description="time at which they were built")
    build_cpu_seconds: float | None = Field(
        default=None, description="CPU seconds of building, without downloads and shared loading"
    )
    versions: dict[str, str] = Field(default={}, description="version of each leaf task")
    task_items: dict[str, int] = Field(
        default={}, description="items of each leaf task, in the order of the dataset"
    )
    scripts: dict[str, list[str]] = Field(
        default={},
        description="scripts, such as LATIN, in which each generating leaf task is written",
    )
    sources: dict[str, str] = Field(
        default={}, description="local data files they were built from: path → '<size> <mtime_ns>'"
    )
    end_text: str | None = Field(
        default=None, description="the tokenizer's end of a text, at which scoring cuts"
    )
    made_from: str = Field(
        default="",
        description="digest of what prompts were made from, but for documents; empty if scoring "
        "has to make them again",
    )
    item_digests: list[str] = Field(
        default=[], description="of each item's document and requests, for scoring to compare"
    )
    offsets: list[int] = Field(
        description="byte offset of each item's line, then of the end of the file"
    )


CACHE_BLOCK = 16
"""Tokens of the blocks in which an engine keeps what prompts share; vLLM's default."""


_CUT_TOKENS = 64


def prompt_lengths(request: Request) -> list[int]:
    """Return the tokens of each turn's prompt, continuation included.

    That of a later turn has the turns before it, without their answers, whose length is not known.
    """
    first = len(request.tokens) + len(request.continuation)
    return list(itertools.accumulate(map(len, request.follow_ups), initial=first))


def context_tokens(request: Request) -> int:
    """Return the tokens of context in which a request is answered as in any larger one.

    An engine generates a token after scoring, too. An answer that a stop string cut is made into
    tokens again before the next turn, perhaps into a few more.
    """
    answers = request.turns * request.max_tokens if request.max_tokens else 1
    return prompt_lengths(request)[-1] + answers + _CUT_TOKENS * len(request.follow_ups)


def largest_token(request: Request) -> int:
    """Return the largest token id that a request has, -1 if it has no tokens."""
    texts = (request.tokens, request.continuation, *request.follow_ups)
    return max(max(tokens, default=-1) for tokens in texts)


def computed_by_turns(request: Request) -> int:
    """Return how many tokens of later turns an engine need not compute: blocks of those before."""
    return sum(length // CACHE_BLOCK * CACHE_BLOCK for length in prompt_lengths(request)[:-1])


def computed_before(request: Request, before: Request | None) -> int:
    """Return how many tokens of a request an engine need not compute after the one before it.

    Those are the whole blocks with which both begin. The last token of a text is computed in any
    case, except for an item's choices of one token: these take one computation of their context.
    """
    if before is None:
        return 0
    text = [*request.tokens, *request.continuation]
    if len(request.continuation) == len(before.continuation) == 1:
        same_item = (request.task, request.doc) == (before.task, before.doc)
        if same_item and request.tokens == before.tokens:
            return len(text)
    other = [*before.tokens, *before.continuation]
    low, high = 0, min(len(other), len(text) - 1) // CACHE_BLOCK
    while low < high:  # the most blocks that are alike, by bisection: lists compare fast
        middle = (low + high + 1) // 2
        edge = middle * CACHE_BLOCK
        low, high = (middle, high) if other[:edge] == text[:edge] else (low, middle - 1)
    return low * CACHE_BLOCK


class Turn(Record):
    """The answer to one follow-up of a request."""

    text: str
    tokens: int
    finish: Literal["stop", "length"]


class Response(Key):
    """The answer of an engine to the request with the same key."""

    text: str | None = Field(
        default=None, description="generated text, not yet cut at stop strings"
    )
    logprob: float | None = Field(default=None, description="sum over the continuation, nats")
    greedy: bool | None = Field(
        default=None, description="greedy decoding would give the continuation"
    )
    tokens: int = Field(description="tokens generated, or scored")
    finish: Literal["stop", "length", "scored"]
    turns: list[Turn] = Field(
        # A default that is no factory would be copied deeply whenever a line is read.
        default_factory=list,
        description="the answers to its follow-ups, in order",
    )

"""The records that travel between processes, in the order in which a run makes them.

They are written as JSON and never pickled. A file that holds one record carries its `schema`.
Readers ignore fields that they do not know, so that fields can be added. A JSON-lines file holds
one record per line; its version is in the file that describes it.

Units are seconds, bytes, tokens and items. Times are seconds since the epoch.
"""

import itertools
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+=@,-]{0,199}$")]
"""A name that is a part of file names and of job names."""


CACHE_BLOCK = 16
"""Tokens of the blocks in which an engine keeps what prompts share; vLLM's default."""


class Record(BaseModel):
    """Base of everything that is written. Instances are immutable."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    def line(self) -> str:
        """Return this record as one line of JSON, with its newline."""
        return self.model_dump_json(exclude_defaults=True) + "\n"


class CheckpointFormat(StrEnum):
    """The file format of weights."""

    SAFETENSORS = "safetensors"
    TORCH = "torch"


class Checkpoint(Record):
    """A checkpoint, as found on disk when it was inspected."""

    path: str
    identity: str = Field(description="sha256 of names, sizes, mtimes and small files' bytes")
    format: CheckpointFormat
    weights: list[str] = Field(description="weight files, absolute")
    files: list[str] = Field(description="config and tokenizer files, absolute")
    bytes: int = Field(description="of the weight files")
    parameters: int
    dtype: str = Field(description="of most parameters, such as 'bfloat16'")
    max_length: int = Field(description="length of the model's context in tokens")
    attention_heads: int
    kv_bytes_per_token: int = Field(description="keys and values of one token, all layers")
    kv_heads: int = Field(
        default=0, description="GPUs that keys and values divide among; 0 if not known"
    )
    activation_bytes_per_token: int = Field(
        default=0, description="of the model's width, all layers; 0 if not known"
    )


class Prior(Record):
    """Costs of a whole dataset on one trial, as a suite states them. All are in seconds."""

    gpu_seconds: float = Field(ge=1e-6, le=1e9)
    cpu_seconds: float = Field(default=0.0, ge=0, le=1e12)
    chunk_overhead_seconds: float = Field(default=0.0, ge=0, le=1e6)
    floor_seconds: float = Field(default=0.0, ge=0, le=1e9)
    # Left out where they are 0: suites without them keep their digest.
    score_seconds: float = Field(default=0.0, ge=0, le=1e9, exclude_if=lambda s: s == 0)
    spread: float = Field(
        default=0.0,
        ge=0,
        le=10,
        exclude_if=lambda s: s == 0,
        description="standard deviation of the logarithm of the true gpu_seconds over these",
    )


class Message(Record):
    """A message to a judge."""

    role: Literal["system", "user", "assistant"]
    content: str = Field(description="a Jinja template")


class Rubric(Record):
    """How a judge, which is another model, rates the answers of a dataset."""

    name: str
    prompts: dict[FileName, list[Message]] = Field(
        description="what the judge is asked about an item, by the name of that part of the score"
    )
    pair: bool = Field(
        default=False,
        description="the answer is compared with a baseline's, then again with sides exchanged",
    )
    id: str | None = Field(
        default=None, description="field of a document by which a baseline's answer is found"
    )
    patterns: list[str] = Field(
        description="regular expressions, tried in turn; their first group is the verdict"
    )
    take: Literal["first", "last"] = Field(default="first", description="which match counts")
    ignore_case: bool = False
    scale: tuple[float, float] | None = Field(
        default=None, description="least and greatest rating, where verdicts are numbers"
    )
    labels: dict[str, list[float]] = Field(
        default={}, description="values that a verdict stands for; it counts once for each"
    )
    aggregation: Literal["mean", "median", "mean_of_items"] = Field(
        default="mean",
        description="of all values of all verdicts; or the mean over items of their own means",
    )
    by: str | None = Field(
        default=None, description="field of a document; its values have scores of their own"
    )
    style_control: bool = Field(
        default=False, description="of a pair: give the win rate without length and Markdown, too"
    )
    temperature: float = Field(default=0.0, ge=0, le=2)
    max_tokens: int = Field(default=2048, ge=1, le=1_000_000)


class Dataset(Record):
    """One dataset of a suite, with the suite's defaults merged in."""

    name: FileName
    group: str | None = Field(default=None, description="subject, for people to read")
    task: str | None = Field(
        default=None, description="of the harness; without one the dataset is planned, but not run"
    )
    items: int | None = None
    prior: Prior | None = None
    splittable: bool = True
    num_fewshot: int | None = None
    gen_kwargs: dict[str, Any] = {}
    limit: int | None = None
    repeats: int | None = None
    chat_template: bool = False
    system_instruction: str | None = None
    fewshot_as_multiturn: bool = False
    think_end_token: str | None = None
    metadata: dict[str, Any] = {}
    # Left out where there is none: suites without it keep their digest.
    rubric: Rubric | None = Field(
        default=None,
        exclude_if=lambda r: r is None,
        description="how a judge rates the answers, in place of the task's own metrics",
    )


class Suite(Record):
    """The datasets of a run."""

    name: str
    digest: str = Field(description="sha256 of the merged content")
    include_path: list[str] = Field(
        default=[], description="absolute folders of tasks; the last one wins"
    )
    datasets: list[Dataset]


class EngineSettings(Record):
    """The engine to start, and its arguments."""

    name: Literal["vllm", "transformers", "simulated"] = Field(
        default="vllm",
        description="vllm, transformers, or simulated: made-up responses, without a model",
    )
    args: dict[str, Any] = Field(
        default={}, description="the engine's own arguments, as a JSON object"
    )


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
    """One request of an item, but for what it shares with others of the item."""

    index: int = 0
    repeat: int = 0
    window: int = 0
    prompt_hash: str
    kind: RequestKind
    context: int = Field(default=0, description="position of its tokens in the item's contexts")
    continuation: list[int] = []
    max_tokens: int = 0
    stop: list[str] = []
    sampling: dict[str, float] = {}
    follow_ups: list[list[int]] = []


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


class DatasetRequests(Record):
    """The index of `requests/<dataset>.jsonl`. It is written beside that file, after it."""

    schema_: Literal["coordinate-eval/requests@2"] = Field(
        default="coordinate-eval/requests@2", alias="schema"
    )
    model_config = ConfigDict(populate_by_name=True)

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
    asks: bool = Field(description="whether its metric asks questions")
    judged: bool = Field(default=False, description="whether it asks a judge")
    question_ids: list[str] = Field(
        default=[],
        description="of each item, by which a baseline's answer is found, if it needs one",
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
    built: float | None = Field(default=None, description="time at which they were built")
    runs_text: str = Field(
        default="its requests were built by an earlier version",
        description="what in its scoring may run what the model wrote; empty if nothing does",
    )
    build_cpu_seconds: float | None = Field(
        default=None, description="CPU seconds of building, without downloads and shared loading"
    )
    versions: dict[str, str] = Field(default={}, description="version of each leaf task")
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


class Span(NamedTuple):
    """The items `start` ≤ i < `stop` of a dataset, which a shard or a portion of it covers."""

    dataset: str
    start: int
    stop: int

    @property
    def stem(self) -> str:
        """Return the span as a part of a file name."""
        return f"{self.start}-{self.stop}"


class Shard(Record):
    """A span of items, with its predicted costs in seconds."""

    dataset: str
    start: int
    stop: int
    gpu_seconds: float
    metric_cpu_seconds: float
    signal: bool = Field(default=False, description="part of the first signal, which runs first")

    @property
    def span(self) -> Span:
        """Return the items that it covers."""
        return Span(self.dataset, self.start, self.stop)


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
    turns: list[Turn] = Field(default=[], description="the answers to its follow-ups, in order")


class QuestionKind(StrEnum):
    """The kinds of expensive work in a metric that can be done item by item."""

    PROGRAM = "program"
    JUDGE = "judge"


PYTHON = "python"
"""The language of programs of which nothing else is said."""


class Question(Record):
    """One piece of expensive work for a metric, identified by its content."""

    id: str = Field(
        description="sha256 of kind, content, timeout, and language but for Python; for a judge of "
        "kind, judge and content"
    )
    kind: QuestionKind
    content: str = Field(
        description="program to run; or JSON for a judge: messages, temperature, max_tokens"
    )
    timeout_seconds: float = 0.0
    language: str = Field(default=PYTHON, description="of the program")
    judge: str = Field(default="", description="model and revision of the judge")


def judge_name(model: str, revision: str) -> str:
    """Return the name of a judge in questions."""
    return f"{model}@{revision}" if revision else model


class Answer(Record):
    """The outcome of a question."""

    id: str
    passed: bool = Field(description="the program passed, or the judge answered")
    result: str = Field(
        description="'passed', 'timed out' or 'failed: …'; or the judge's words, or why it refused"
    )
    seconds: float
    tokens: int = Field(default=0, description="that the judge read and wrote")
    kept: bool = Field(default=False, description="an earlier run had asked the judge")
    cpu_seconds: float = Field(default=0.0, description="CPU time of a program that timed out")
    toolchain: str = Field(default="", description="version of the compiler; empty for Python")


class Outputs(Record):
    """How many generated answers of a dataset show that something has gone wrong."""

    responses: int = Field(ge=0, description="generated answers; a conversation counts as one")
    empty: int = Field(default=0, ge=0, description="of these, without any text")
    repeated: int = Field(default=0, ge=0, description="of these, mostly repetition")
    other_script: int = Field(default=0, ge=0, description="of these, in a script not the task's")
    cut: int = Field(default=0, ge=0, description="of these, ended by the limit of tokens")


class DatasetResults(Record):
    """The content of `results/<dataset>.json`, in the harness's own shape."""

    schema_: Literal["coordinate-eval/results@1"] = Field(
        default="coordinate-eval/results@1", alias="schema"
    )
    model_config = ConfigDict(populate_by_name=True)

    dataset: str
    items: int
    results: dict[str, dict[str, Any]] = Field(description="task or group → metric → value")
    groups: dict[str, dict[str, Any]] = {}
    group_subtasks: dict[str, list[str]] = Field(default={}, description="group → its members")
    higher_is_better: dict[str, dict[str, Any]] = {}
    n_shot: dict[str, Any] = {}
    n_samples: dict[str, Any] = {}
    versions: dict[str, Any] = {}
    harness: str = Field(default="", description="version of lm_eval that scored it")
    cpu_seconds: float = Field(default=0.0, description="that scoring took")
    plain_chat: bool = Field(
        default=False,
        description="the checkpoint has no chat template: the tasks' own turn_template stood in",
    )
    toolchains: dict[str, str] = Field(
        default={}, description="language of programs → versions of the compilers that were used"
    )
    outputs: Outputs | None = Field(default=None, description="of a dataset that generates")
    judge: dict[str, Any] = Field(
        default={},
        description="of a judged dataset: model, revision, digest of the rubric, questions, and "
        "how many of their answers had no verdict",
    )


def prompt_lengths(request: Request) -> list[int]:
    """Return the tokens of each turn's prompt, continuation included.

    That of a later turn has the turns before it, without their answers, whose length is not known.
    """
    first = len(request.tokens) + len(request.continuation)
    return list(itertools.accumulate(map(len, request.follow_ups), initial=first))


def computed_by_turns(request: Request) -> int:
    """Return how many tokens of later turns an engine need not compute: blocks of those before."""
    return sum(length // CACHE_BLOCK * CACHE_BLOCK for length in prompt_lengths(request)[:-1])


def computed_before(request: Request, before: Request | None) -> int:
    """Return how many tokens of a request an engine need not compute after the one before it.

    Those are the whole blocks with which both begin. The last token of a text is computed in any
    case, but for an item's choices of one token, which take one computation of their context.
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

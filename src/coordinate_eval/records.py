"""What travels between processes: frozen, versioned records, written as JSON, never pickled.

Files that hold one record carry its `schema`; readers ignore fields that they do not know, so
fields may be added. JSON-lines files hold one record a line and are versioned by the file
that describes them. Units: seconds, bytes, tokens, items; times are seconds since the epoch.
"""

from enum import StrEnum
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

MOST_CPUS, MOST_GPUS = 100_000, 1024
"""Of one job: more than any node has."""


class Record(BaseModel):
    """Base of everything that is written: immutable, tolerant of newer fields."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    def line(self) -> str:
        """This record as one line of JSON, with its newline."""
        return self.model_dump_json(exclude_defaults=True) + "\n"


class RequestKind(StrEnum):
    """What an engine is asked to do with a prompt."""

    GENERATE = "generate"
    LOGLIKELIHOOD = "loglikelihood"


class Key(Record):
    """Which prompt of which item: equal in a request and in its response."""

    dataset: str
    item: int = Field(description="position in the dataset, from 0")
    task: str = Field(description="leaf task of the harness")
    doc: int = Field(description="document id within the leaf task")
    index: int = Field(default=0, description="request of this document, such as the choice")
    repeat: int = Field(default=0, description="sample of this request")
    window: int = Field(default=0, description="window of a rolling log-likelihood")
    prompt_hash: str = Field(description="sha256 of what the harness asked, first 16 hex digits")

    def identity(self) -> tuple[str, int, int, int, int]:
        """What tells a request from every other of its dataset."""
        return self.task, self.doc, self.index, self.repeat, self.window


class Request(Key):
    """One prompt, tokenized and truncated: an engine needs no tokenizer to read it."""

    kind: RequestKind
    tokens: list[int] = Field(description="prompt, or the context of a log-likelihood")
    continuation: list[int] = Field(default=[], description="scored tokens (log-likelihood)")
    max_tokens: int = Field(default=0, description="most tokens to generate")
    stop: list[str] = Field(default=[], description="strings at which generation may end")
    sampling: dict[str, float] = Field(
        default={}, description="temperature, top_p, top_k, seed …; empty means greedy"
    )


class Response(Key):
    """What the engine answered to the request of the same key."""

    text: str | None = Field(default=None, description="generated text, not yet cut at stops")
    logprob: float | None = Field(default=None, description="sum over the continuation, nats")
    greedy: bool | None = Field(default=None, description="continuation is what greedy would say")
    tokens: int = Field(description="tokens generated, or scored")
    finish: Literal["stop", "length", "scored"]


class QuestionKind(StrEnum):
    """What is expensive in a metric and answerable one by one."""

    PROGRAM = "program"


class Question(Record):
    """One expensive look-up of a metric, known by its content."""

    id: str = Field(description="sha256 of kind, content and timeout")
    kind: QuestionKind
    content: str = Field(description="program to run")
    timeout_seconds: float


class Answer(Record):
    """The outcome of a question."""

    id: str
    passed: bool
    result: str = Field(description="'passed', 'timed out' or 'failed: …'")
    seconds: float


class Prior(Record):
    """Costs of a whole dataset on one trial, when a suite gives them."""

    gpu_seconds: float = Field(ge=1e-6, le=1e9)
    cpu_seconds: float = Field(default=0.0, ge=0, le=1e12)
    chunk_overhead_seconds: float = Field(default=0.0, ge=0, le=1e6)
    floor_seconds: float = Field(default=0.0, ge=0, le=1e9)


class Dataset(Record):
    """One dataset of a suite, defaults merged in."""

    name: str
    group: str | None = Field(default=None, description="what it is about, for people")
    task: str | None = Field(default=None, description="of the harness; none: planned, not run")
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


class Suite(Record):
    """The datasets of a run."""

    name: str
    digest: str = Field(description="sha256 of the merged content")
    include_path: list[str] = Field(
        default=[], description="absolute folders of tasks, the last wins"
    )
    datasets: list[Dataset]


class CheckpointFormat(StrEnum):
    """How the weights lie on disk."""

    SAFETENSORS = "safetensors"
    TORCH = "torch"


class Checkpoint(Record):
    """A checkpoint as it was found."""

    path: str
    identity: str = Field(description="sha256 of names, sizes, mtimes and small files' bytes")
    format: CheckpointFormat
    weights: list[str] = Field(description="weight files, absolute")
    files: list[str] = Field(description="config and tokenizer files, absolute")
    bytes: int = Field(description="of the weight files")
    parameters: int
    dtype: str = Field(description="of most parameters, such as 'bfloat16'")
    max_length: int = Field(description="tokens of context the model was made for")
    attention_heads: int
    kv_bytes_per_token: int = Field(description="keys and values of one token, all layers")


class EngineSettings(Record):
    """Which engine to start and how."""

    name: Literal["vllm", "transformers", "simulated"] = "vllm"
    args: dict[str, Any] = Field(default={}, description="passed to the engine's constructor")


class DatasetRequests(Record):
    """What `requests/<dataset>.jsonl` holds; written after it, beside it."""

    schema_: Literal["coordinate-eval/requests@1"] = Field(
        default="coordinate-eval/requests@1", alias="schema"
    )
    model_config = ConfigDict(populate_by_name=True)

    dataset: str
    key: str = Field(description="cache key: what the requests were built from")
    items: int
    requests: int
    prompt_tokens: int = Field(description="sum over requests, continuation included")
    generate_requests: int
    max_output_tokens: int = Field(description="sum of the limits of all generating requests")
    longest_output_tokens: int = Field(description="largest limit of one request")
    asks: bool = Field(description="whether its metric asks questions")
    built: float | None = Field(default=None, description="when")
    build_cpu_seconds: float | None = Field(
        default=None, description="without what is loaded once for all datasets, and downloads"
    )
    versions: dict[str, str] = Field(default={}, description="version of each leaf task")
    sources: dict[str, str] = Field(
        default={}, description="local data files it was made from: '<size> <mtime_ns>' by path"
    )
    offsets: list[int] = Field(description="byte offset of each item's first line, and the end")


class DatasetResults(Record):
    """What `results/<dataset>.json` holds, in the harness's own shape."""

    schema_: Literal["coordinate-eval/results@1"] = Field(
        default="coordinate-eval/results@1", alias="schema"
    )
    model_config = ConfigDict(populate_by_name=True)

    dataset: str
    items: int
    results: dict[str, dict[str, Any]] = Field(description="task or group → metric → value")
    groups: dict[str, dict[str, Any]] = {}
    higher_is_better: dict[str, dict[str, Any]] = {}
    n_shot: dict[str, Any] = {}
    n_samples: dict[str, Any] = {}
    versions: dict[str, Any] = {}


class SlurmSettings(Record):
    """What a site needs in every batch script; empty means the cluster's own default."""

    partition: str = Field(default="", description="where trials and keepers run")
    cpu_partition: str = Field(default="", description="supervisor and metrics; else partition")
    account: str = ""
    qos: str = ""
    constraint: str = ""
    setup: tuple[str, ...] = Field(default=(), description="shell lines before each job")
    extra_args: tuple[str, ...] = Field(default=(), description="more #SBATCH options")
    timeout_seconds: float = Field(default=60.0, gt=0, le=1e6, description="for one Slurm command")


class Span(NamedTuple):
    """The items `start` ≤ i < `stop` of a dataset: what a shard or a portion of one covers."""

    dataset: str
    start: int
    stop: int

    @property
    def stem(self) -> str:
        """The span as part of a file name."""
        return f"{self.start}-{self.stop}"


class Shard(Record):
    """A span of items and what is predicted for it."""

    dataset: str
    start: int
    stop: int
    gpu_seconds: float
    metric_cpu_seconds: float
    signal: bool = Field(default=False, description="part of the first signal: runs first")

    @property
    def span(self) -> Span:
        """The items it covers."""
        return Span(self.dataset, self.start, self.stop)


class RaySettings(Record):
    """The embedded cluster of this machine."""

    gpus: int | None = Field(
        default=None, ge=1, le=MOST_GPUS, description="else those found; one without any"
    )
    cpus: int | None = Field(default=None, ge=1, le=MOST_CPUS, description="else this machine's")

"""The inputs of a run: a checkpoint, the datasets of a suite, an engine."""

import math
import operator
from collections.abc import Container, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from coordinate_eval.records.base import FileName, Record, absent
from coordinate_eval.records.names import TensorMapping
from coordinate_eval.records.shards import LEAST_OF_TASK


class CheckpointFormat(StrEnum):
    """The file format of weights."""

    SAFETENSORS = "safetensors"
    TORCH = "torch"
    DCP = "dcp"
    DEEPSPEED = "deepspeed"
    MEGATRON = "megatron"
    ADAPTER = "adapter"
    AVERAGE = "average"

    @property
    def converted(self) -> bool:
        """Return whether engines cannot read it, so that it is written as safetensors first."""
        return self is not CheckpointFormat.SAFETENSORS


class ModelCosts(Record):
    """The cost of a model for an engine: the one account from which all predictions follow."""

    bytes: int = Field(gt=0, lt=10**18, description="of the weights that engines get")
    parameters: int = Field(gt=0, lt=10**18)
    active_parameters: int = absent(0, "that each token goes through; 0: all", ge=0, lt=10**18)
    routed_bytes: int = absent(0, "of `bytes`, in experts that are chosen among", ge=0, lt=10**18)
    experts: int = absent(0, "of a layer; 0: no mixture", ge=0, lt=10**9)
    experts_per_token: int = absent(0, ge=0, lt=10**9)
    multiplied_bits: int = absent(
        16, "of the numbers that are multiplied, on GPUs that can: 16, 8 or 4"
    )
    kv_bytes_per_token: int = absent(0, "keys and values of one token, all layers", ge=0, lt=10**18)
    windowed_bytes_per_token: int = absent(
        0, "of these, in layers that keep the last `window` tokens only", ge=0, lt=10**18
    )
    window: int = absent(0, ge=0, lt=10**18)
    state_bytes: int = absent(0, "of a sequence, however long it is", ge=0, lt=10**18)
    kv_heads: int = absent(0, "GPUs that keys and values divide among; 0: any", ge=0, lt=10**9)
    activation_bytes_per_token: int = absent(
        0, "of the model's width, all layers; 0 if unknown", ge=0, lt=10**18
    )

    @property
    def active(self) -> int:
        """Return the parameters that each token goes through."""
        return self.active_parameters or self.parameters

    def kv_bytes(self, tokens: float) -> float:
        """Return the bytes that an engine keeps of a sequence of so many tokens."""
        growing = self.kv_bytes_per_token - self.windowed_bytes_per_token
        kept = min(tokens, self.window)
        return growing * tokens + self.windowed_bytes_per_token * kept + self.state_bytes

    def read_bytes(self, tokens: float) -> float:
        """Return the bytes of weights that a step reads which computes so many tokens.

        Each goes through some experts of each layer, as if they were drawn at random. So of a few
        tokens' step only a part of the experts is read.
        """
        if not self.experts:
            return self.bytes
        missed: float = (1 - self.experts_per_token / self.experts) ** tokens
        return self.bytes - self.routed_bytes * missed


class Made(Record):
    """The name of a checkpoint, and of those that it is made of."""

    path: str
    identity: str = Field(description="sha256 of names, sizes, mtimes and small files' bytes")
    format: CheckpointFormat
    parts: Sequence["Made"] = absent(
        [], "checkpoints that it is made of: the base, or those of an average"
    )
    shares: list[float] = absent([], "weights of these in an average")


class Checkpoint(ModelCosts, Made):
    """A checkpoint, as found on disk when it was inspected."""

    parts: Sequence["Checkpoint"] = absent([])
    weights: list[str] = Field(description="weight files of its own, absolute")
    files: list[str] = Field(description="config and tokenizer files, absolute")
    mapping: TensorMapping | None = absent(
        None, "from the names of the tensors to those of Hugging Face; none: they are those"
    )
    loaded_bytes: int = Field(
        default=0, description="of these, that an engine loads, as they are in the files; 0: all"
    )
    dtype: str = Field(description="of most parameters, such as 'bfloat16'")
    quantization: str = Field(default="", description="as vLLM names it, such as fp8; empty: none")
    doubt: str = Field(default="", description="why these figures are less sure than usual")
    max_length: int = Field(description="length of the model's context in tokens, for vLLM")
    short_length: int = Field(
        default=0,
        description="that of LongRoPE without its long factors, which vLLM takes by itself, else 0",
    )
    hf_length: int = Field(
        default=0, description="the length for the harness's `hf`; 0 if it is `max_length`"
    )
    same_from: int = Field(
        default=0,
        description="vLLM computes alike with all contexts longer than this, and with all others; "
        "0: with any",
    )
    attention_heads: int
    vocabulary: int = Field(
        default=0, description="tokens that the model has an embedding for; 0 if not known"
    )
    stages: int = Field(
        default=1, description="most parts into which engines cut its layers, for pipelines"
    )
    splits: dict[str, int] = Field(
        default={}, description="numbers that a tensor-parallel degree has to divide, by name"
    )
    expert_splits: dict[str, int] = Field(
        default={}, description="the same, unless GPUs hold whole experts"
    )

    @property
    def converted(self) -> bool:
        """Return whether its tensors are written as safetensors for engines."""
        return self.format.converted or self.mapping is not None

    @property
    def remote(self) -> bool:
        """Return whether weights of it are in an object store, and have URLs for paths."""
        return any("://" in name for name in self.all_weights)

    @property
    def reads(self) -> float:
        """Return the bytes that are read for each byte of the weights that engines get."""
        if not self.parts:
            return 1.0
        return sum(part.bytes * part.reads for part in self.parts) / self.bytes

    @property
    def all_weights(self) -> list[str]:
        """Return the files that tensors are read from, with those of its parts."""
        return [*self.weights, *(file for part in self.parts for file in part.all_weights)]

    @property
    def all_files(self) -> list[str]:
        """Return every file that it is read from, with those of its parts."""
        own = [*self.weights, *self.files]
        return own + [file for part in self.parts for file in part.all_files]


class Prior(Record):
    """Costs of a whole dataset on one trial, as a suite states them. All are in seconds."""

    gpu_seconds: float = Field(ge=1e-6, le=1e9)
    cpu_seconds: float = Field(default=0.0, ge=0, le=1e12)
    chunk_overhead_seconds: float = Field(default=0.0, ge=0, le=1e6)
    floor_seconds: float = Field(default=0.0, ge=0, le=1e9)
    # Left out where they are 0: suites without them keep their digest.
    score_seconds: float = absent(0.0, ge=0, le=1e9)
    spread: float = absent(
        0.0, "standard deviation of the logarithm of the true gpu_seconds over these", ge=0, le=10
    )


class Message(Record):
    """A message to a judge."""

    role: Literal["system", "user", "assistant"]
    content: str = Field(description="a Jinja template")


class Rubric(Record):
    """Rules by which a judge, another model, rates a dataset's answers."""

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
    # Larger than anything that can be run, and so small that no sum of products overflows.
    items: int | None = Field(default=None, ge=1, le=10**9)
    prior: Prior | None = None
    splittable: bool = True
    num_fewshot: int | None = Field(default=None, ge=0, le=10**4)
    gen_kwargs: dict[str, Any] = Field(default={})
    limit: int | None = Field(default=None, ge=1, le=10**9)
    # Left out where there is none: suites without it keep their digest.
    sample: float | None = absent(
        None,
        "share of the items that is asked, until all are wanted: drawn at random, and always the "
        "same ones",
        ge=1e-6,
        le=1,
    )
    repeats: int | None = Field(default=None, ge=1, le=10**4)
    chat_template: bool = False
    system_instruction: str | None = None
    fewshot_as_multiturn: bool = False
    think_end_token: str | None = None
    metadata: dict[str, Any] = Field(default={})
    chance: float | None = absent(
        None, "score of guessing, to which aggregates may be normalized", ge=0, lt=1
    )
    rubric: Rubric | None = absent(
        None, "how a judge rates the answers, in place of the task's own metrics"
    )

    def in_sample(self, items: int, tasks: int = 1) -> int:
        """Return how many items are asked first: of each task two at least, for a standard error.

        Without a sample these are all.
        """
        return min(items, max(LEAST_OF_TASK * tasks, math.ceil(items * (self.sample or 1.0))))


class Aggregate(Record):
    """A weighted mean over datasets of a suite: their scores times `factors`, less `offset`."""

    factors: dict[str, float] = Field(description="dataset → factor of its score")
    offset: float = Field(default=0.0, description="what guessing would score")

    def value(
        self, scores: Mapping[str, tuple[float, float | None]]
    ) -> tuple[float, float | None] | None:
        """Return the value and its standard error; None unless all of its datasets are there."""
        if self.missing(scores):
            return None
        parts = [scores[name] for name in self.factors]
        errors = [error for _, error in parts if error is not None]
        return self.of([score for score, _ in parts], errors if len(errors) == len(parts) else None)

    def of(
        self, scores: Sequence[float], errors: Sequence[float] | None
    ) -> tuple[float, float | None]:
        """Return the value and its standard error, of scores in the order of `factors`."""
        factors = self.factors.values()
        value = sum(map(operator.mul, factors, scores)) - self.offset
        return value, None if errors is None else math.hypot(*map(operator.mul, factors, errors))

    def missing(self, scores: Container[str]) -> list[str]:
        """Return the datasets without a score."""
        return [name for name in self.factors if name not in scores]


class Suite(Record):
    """The datasets of a run."""

    name: str
    digest: str = Field(description="sha256 of the merged content")
    include_path: list[str] = Field(
        default=[], description="absolute folders of tasks; the last one wins"
    )
    datasets: list[Dataset]
    aggregates: dict[str, Aggregate] = absent({})


class EngineSettings(Record):
    """The engine to start, and its arguments."""

    name: Literal["vllm", "transformers", "server", "simulated"] = Field(
        default="vllm",
        description="vllm; transformers; server: a command or an address, which args give; or "
        "simulated: made-up responses, without a model",
    )
    args: dict[str, Any] = Field(
        default={}, description="the engine's own arguments, as a JSON object"
    )

    @property
    def elsewhere(self) -> bool:
        """Return whether it is a server of others: trials only ask it, and take no GPU."""
        return self.name == "server" and "base_url" in self.args

    @property
    def serves_adapters(self) -> bool:
        """Return whether vLLM serves an adapter by its own LoRA, so that none is merged."""
        return self.name == "vllm" and self.args.get("enable_lora") is True

    def loads(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the checkpoint whose weights it loads: of an adapter that it serves, the base."""
        adapter = checkpoint.format is CheckpointFormat.ADAPTER
        return checkpoint.parts[0] if adapter and self.serves_adapters else checkpoint

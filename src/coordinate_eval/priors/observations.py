"""What finished runs have shown: one JSON line each, read by `learn`, kept by `store`.

A line says under which conditions and in which run something was seen. What a whole dataset did
in a run is one line: the shards that finished, summed.
"""

import hashlib
import json
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from coordinate_eval.priors.roofline import Conditions, Work
from coordinate_eval.records import Dataset, Record

_MANY = 10**12
"""More than any run has of anything: what is larger is an error."""


class Subject(Record):
    """What is asked, apart from who is asked: observations of one subject can be compared."""

    task: str = Field(description="of the harness; the dataset's name where it has none")
    settings: str = Field(description="digest of what else decides an item, such as few-shot")


def subject(dataset: Dataset) -> Subject:
    """The subject of a dataset of a suite."""
    # `limit` takes fewer items, and leaves each as it is.
    apart = {"name", "task", "prior", "items", "splittable", "limit"}
    shape = json.dumps(dataset.model_dump(mode="json", exclude=apart), sort_keys=True)
    digest = hashlib.sha256(shape.encode()).hexdigest()[:12]
    return Subject(task=dataset.task or dataset.name, settings=digest)


class _Seen(Record):
    """Part of every observation."""

    model_config = ConfigDict(allow_inf_nan=False)

    run: str = Field(min_length=1, description="id and nonce of the run")
    time: float = Field(ge=0, description="of the last of it, seconds since the epoch")
    conditions: Conditions


class DatasetSeen(_Seen):
    """What the finished shards of a dataset cost on one trial's GPUs."""

    kind: Literal["dataset"] = "dataset"
    dataset: str
    subject: Subject
    shards: int = Field(gt=0, lt=_MANY)
    items: int = Field(gt=0, lt=_MANY)
    requests: int = Field(gt=0, lt=_MANY)
    prompt_tokens: int = Field(gt=0, lt=_MANY, description="scored continuations included")
    output_tokens: int = Field(ge=0, lt=_MANY, description="generated")
    scored_tokens: int = Field(ge=0, lt=_MANY)
    longest_output_tokens: int = Field(ge=0, lt=_MANY)
    gpu_seconds: float = Field(ge=1e-6, lt=_MANY)

    def work(self) -> Work:
        """What was asked of the model."""
        return Work(
            items=self.items,
            requests=self.requests,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            longest_output_tokens=self.longest_output_tokens,
        )


class TrialSeen(_Seen):
    """How long an engine took to start."""

    kind: Literal["trial"] = "trial"
    trial: str
    start_seconds: float = Field(
        ge=0, le=1e6, description="from the process's start, without staging"
    )


class MetricSeen(_Seen):
    """What the questions of a dataset's metric took, one after another on one core."""

    kind: Literal["metric"] = "metric"
    dataset: str
    subject: Subject
    items: int = Field(gt=0, lt=_MANY)
    cpu_seconds: float = Field(ge=0, lt=_MANY)


class StageSeen(_Seen):
    """How long a copy of the weights into a node's memory took."""

    kind: Literal["stage"] = "stage"
    node: str
    storage: str = Field(description="where the file system it was read from is mounted")
    bytes: int = Field(gt=0, lt=10**18, description="of the checkpoint's weight files")
    seconds: float = Field(ge=1e-6, lt=_MANY)
    at_once: float = Field(
        ge=1, lt=_MANY, description="copies of the run under way meanwhile, itself one; the mean"
    )
    converted: bool = Field(description="from a state dict of torch.save")


class BuildSeen(_Seen):
    """What it took to build the requests of a dataset; `time` is when that was."""

    kind: Literal["build"] = "build"
    dataset: str
    subject: Subject
    items: int = Field(gt=0, lt=_MANY)
    cpu_seconds: float = Field(ge=0, lt=_MANY, description="see `DatasetRequests`")


Seen = DatasetSeen | TrialSeen | MetricSeen | StageSeen | BuildSeen

_ANY: TypeAdapter[Seen] = TypeAdapter(Annotated[Seen, Field(discriminator="kind")])


def parse(line: bytes | str) -> Seen:
    """The observation of a line.

    Raises:
        ValueError: it is none.
    """
    return _ANY.validate_json(line)


def dump(seen: Seen) -> str:
    """An observation as a line of JSON."""
    return seen.model_dump_json() + "\n"

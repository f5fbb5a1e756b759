"""Observations of finished runs, one JSON line each. `predict` reads them, `store` keeps them.

Each line names its run and the conditions. All finished shards of a dataset in one run are one
line.
"""

import hashlib
import json
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from coordinate_eval.priors.roofline import Conditions, Work
from coordinate_eval.records import Dataset, Record

_MANY = 10**12
"""Upper limit for counts and seconds: no run reaches it, so larger values are errors."""


class Subject(Record):
    """A task and its settings, whatever the model. Observations of one subject are comparable."""

    task: str = Field(description="harness task, else the dataset's name")
    settings: str = Field(
        description="digest of all else that decides an item, such as num_fewshot"
    )


def subject(dataset: Dataset) -> Subject:
    """Return the subject of a dataset of a suite."""
    # `limit` takes fewer items but does not change them.
    apart = {"name", "task", "prior", "items", "splittable", "limit"}
    shape = json.dumps(dataset.model_dump(mode="json", exclude=apart), sort_keys=True)
    digest = hashlib.sha256(shape.encode()).hexdigest()[:12]
    return Subject(task=dataset.task or dataset.name, settings=digest)


class _Seen(Record):
    """The fields of every observation."""

    model_config = ConfigDict(allow_inf_nan=False)

    run: str = Field(min_length=1, description="id and nonce of the run")
    time: float = Field(ge=0, description="end, in seconds since the epoch")
    conditions: Conditions


class DatasetSeen(_Seen):
    """The cost of a dataset's finished shards, in seconds of one trial."""

    kind: Literal["dataset"] = "dataset"
    dataset: str
    subject: Subject
    shards: int = Field(gt=0, lt=_MANY)
    items: int = Field(gt=0, lt=_MANY)
    requests: int = Field(gt=0, lt=_MANY)
    prompt_tokens: int = Field(gt=0, lt=_MANY, description="scored continuations included")
    cached_tokens: int = Field(default=0, ge=0, lt=_MANY, description="of the prompts; see `Work`")
    output_tokens: int = Field(ge=0, lt=_MANY, description="generated")
    scored_tokens: int = Field(ge=0, lt=_MANY)
    longest_output_tokens: int = Field(ge=0, lt=_MANY)
    gpu_seconds: float = Field(ge=1e-6, lt=_MANY)

    def work(self) -> Work:
        """Return the requests and tokens of these shards."""
        return Work(
            items=self.items,
            requests=self.requests,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            longest_output_tokens=self.longest_output_tokens,
            cached_tokens=self.cached_tokens,
        )


class TrialSeen(_Seen):
    """The seconds that an engine took to start."""

    kind: Literal["trial"] = "trial"
    trial: str
    start_seconds: float = Field(
        ge=0, le=1e6, description="from the start of its process, without staging"
    )


class MetricSeen(_Seen):
    """The CPU seconds of a dataset's metric questions, one after another on one core."""

    kind: Literal["metric"] = "metric"
    dataset: str
    subject: Subject
    items: int = Field(gt=0, lt=_MANY)
    cpu_seconds: float = Field(ge=0, lt=_MANY)


class ScoreSeen(_Seen):
    """The CPU seconds of scoring a dataset."""

    kind: Literal["score"] = "score"
    dataset: str
    subject: Subject
    items: int = Field(gt=0, lt=_MANY)
    requests: int = Field(gt=0, lt=_MANY)
    seconds: float = Field(ge=0, lt=_MANY)


class StageSeen(_Seen):
    """The seconds that a copy of the weights into a node's memory took."""

    kind: Literal["stage"] = "stage"
    node: str
    storage: str = Field(description="mount point of the file system that was read")
    bytes: int = Field(gt=0, lt=10**18, description="size of the checkpoint's weight files")
    seconds: float = Field(ge=1e-6, lt=_MANY)
    at_once: float = Field(
        ge=1, lt=_MANY, description="mean number of the run's copies under way, this one included"
    )
    converted: bool = Field(description="whether converted from a state dict of torch.save")


Seen = DatasetSeen | TrialSeen | MetricSeen | ScoreSeen | StageSeen

_ANY: TypeAdapter[Seen] = TypeAdapter(Annotated[Seen, Field(discriminator="kind")])


def parse(line: bytes | str) -> Seen:
    """Parse a line of JSON.

    Raises:
        ValueError: The line is not an observation.
    """
    return _ANY.validate_json(line)


def dump(seen: Seen) -> str:
    """Return an observation as a line of JSON."""
    return seen.model_dump_json() + "\n"

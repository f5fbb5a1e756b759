"""The scores of a dataset, and those of its items, by which two checkpoints are compared."""

from typing import Annotated, Any, Literal, Self

from pydantic import FailFast, Field, FiniteFloat, model_validator
from typing_extensions import TypedDict  # pydantic takes that of `typing` from Python 3.12 on

from coordinate_eval.records.base import FileName, Record, schema
from coordinate_eval.records.requests import OwnAnswers

Numbers = Annotated[list[int], FailFast()]
Values = Annotated[list[FiniteFloat | None], FailFast()]


class ItemScores(Record):
    """The scores of the items of one leaf task, for one of the task's filters."""

    task: str = Field(description="as the dataset's results call it")
    filter: str
    items: Numbers = Field(description="positions in the dataset, ascending")
    documents: str = Field(
        description="digest of the documents behind the items: where it differs, items differ"
    )
    clusters: Numbers = Field(
        default=[],
        description="number of each item's cluster in the dataset; empty where each item is alone",
    )
    metrics: dict[str, Values] = Field(
        max_length=100, description="metric → value of each item, null where the item has none"
    )

    @model_validator(mode="after")
    def _of_one_length(self) -> Self:
        lengths = {*map(len, self.metrics.values()), len(self.clusters) or len(self.items)}
        if lengths - {len(self.items)}:
            raise ValueError("each item needs one value of each metric")
        if any(b <= a for a, b in zip(self.items, self.items[1:], strict=False)):
            raise ValueError("items are not in ascending order")
        return self


class DatasetItems(Record):
    """The content of `items/<dataset>.json`."""

    schema_: Literal["coordinate-eval/items@1"] = schema("coordinate-eval/items@1")

    dataset: FileName
    tables: list[ItemScores]

    def of(self, task: str, metric: str) -> ItemScores | None:
        """Return the table of a task that has this metric, written `name,filter`."""
        name, _, filter_name = metric.rpartition(",")
        for table in self.tables:
            if (table.task, table.filter) == (task, filter_name) and name in table.metrics:
                return table
        return None


class Outputs(Record):
    """Counts of a dataset's generated answers that show something has gone wrong."""

    responses: int = Field(ge=0, description="generated answers; a conversation counts as one")
    empty: int = Field(default=0, ge=0, description="of these, without any text")
    repeated: int = Field(default=0, ge=0, description="of these, mostly repetition")
    other_script: int = Field(default=0, ge=0, description="of these, in a script not the task's")
    cut: int = Field(default=0, ge=0, description="of these, ended by the limit of tokens")


class Judge(TypedDict, total=False):
    """The judge of a dataset, as its results describe it."""

    model: str
    revision: str
    rubric: str
    rubric_digest: str
    prompts_digest: str
    questions: int
    without_verdict: int
    refused: int
    odd: dict[str, int]
    pairs_left_out: int


class DatasetResults(Record):
    """The content of `results/<dataset>.json`, in the harness's own shape."""

    schema_: Literal["coordinate-eval/results@1"] = schema("coordinate-eval/results@1")

    dataset: str
    items: int
    results: dict[str, dict[str, Any]] = Field(description="task or group → metric → value")
    groups: dict[str, dict[str, Any]] = Field(default={})
    group_subtasks: dict[str, list[str]] = Field(default={}, description="group → its members")
    higher_is_better: dict[str, dict[str, Any]] = Field(default={})
    n_shot: dict[str, Any] = Field(default={})
    n_samples: dict[str, dict[str, Any]] = Field(default={})
    versions: dict[str, Any] = Field(default={})
    harness: str = Field(default="", description="version of lm_eval that scored it")
    cpu_seconds: float = Field(default=0.0, description="that scoring took")
    plain_chat: bool = Field(
        default=False,
        description="the checkpoint has no chat template: the tasks' own turn_template stood in",
    )
    own_answers: dict[str, OwnAnswers] = Field(
        default={},
        description="leaf tasks whose few-shot examples are drawn from the evaluated items, or "
        "show an item's own answer",
    )
    toolchains: dict[str, str] = Field(
        default={}, description="language of programs → versions of the compilers that were used"
    )
    outputs: Outputs | None = Field(default=None, description="of a dataset that generates")
    judge: Judge = Field(default=Judge(), description="of a judged dataset")
    item_scores: list[ItemScores] = Field(
        default=[], exclude=True, description="in a file of their own, `items/<dataset>.json`"
    )

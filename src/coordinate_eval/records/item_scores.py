"""The scores of a dataset's items, by which two checkpoints are compared."""

from typing import Annotated, Literal, Self

from pydantic import FailFast, Field, FiniteFloat, model_validator

from coordinate_eval.records.base import FileName, Record, schema

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

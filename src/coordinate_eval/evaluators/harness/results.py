"""The record of a dataset's results, made from the return value of the harness's `evaluate`."""

import math
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import Any

from coordinate_eval.records import Dataset, DatasetResults


def dataset_results(
    dataset: Dataset, *, top: str | None, items: int, evaluated: Mapping[str, Any]
) -> DatasetResults:
    """Return the results in the harness's shape, with names after the dataset and JSON values.

    `top` is the harness's name of the dataset's own task or group, None for a tag. NaN and
    infinite numbers become "N/A", the harness's own value for a missing standard error.
    """
    rename = _naming(dataset, top)

    def table(field: str) -> dict[str, Any]:
        return {rename(name): _plain(entry) for name, entry in evaluated.get(field, {}).items()}

    return DatasetResults(
        dataset=dataset.name,
        items=items,
        results=table("results"),
        groups=table("groups"),
        group_subtasks={
            rename(name): [*map(rename, members)]
            for name, members in evaluated.get("group_subtasks", {}).items()
        },
        higher_is_better=table("higher_is_better"),
        n_shot=table("n-shot"),
        n_samples=table("n-samples"),
        versions=table("versions"),
        harness=metadata.version("lm_eval"),
    )


def result_names(dataset: Dataset, *, top: str | None, names: Iterable[str]) -> list[str]:
    """Return the names in the dataset's results for these tasks and groups of the harness."""
    return [*map(_naming(dataset, top), names)]


def _naming(dataset: Dataset, top: str | None) -> Callable[[str], str]:
    own_names = dataset.name == (dataset.task or dataset.name)

    def rename(name: str) -> str:
        if name == top:
            return dataset.name
        return name if own_names else f"{dataset.name}/{name}"

    return rename


def _plain(value: Any) -> Any:  # noqa: ANN401  metrics return whatever they like
    """Return a value of a metric as one that JSON can hold."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(entry) for entry in value]
    if hasattr(value, "tolist"):  # numpy's scalars and arrays, torch's tensors
        return _plain(value.tolist())
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else "N/A"
    return value if value is None or isinstance(value, bool | int | str) else str(value)

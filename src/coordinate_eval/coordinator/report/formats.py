"""The results of one run for others: as lm-evaluation-harness writes them, and for a model card."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from coordinate_eval._engines import kind_of
from coordinate_eval.coordinator.report.main_metric import Score, main_score
from coordinate_eval.coordinator.run.claiming.decided import cut_short
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.records import Dataset, DatasetResults, judge_name

_SEED = 1234
"""The seed of the harness's random generators, except Python's, which has 0."""


def lm_eval_results(
    run: Run, results: Mapping[str, Any], scored: Sequence[DatasetResults]
) -> dict[str, Any]:
    """Return what the harness's `--output_path` has in `results_<time>.json`, with its keys.

    What only a process of the harness knows is left out or None: its environment and Git commit.

    Args:
        scored: the results of its datasets.
    """
    datasets = {dataset.name: dataset for dataset in run.suite.datasets}
    configs = {
        task: _config(datasets[found.dataset], task, found)
        for found in scored
        for task in found.results
        if task not in found.group_subtasks
    }
    kind = kind_of(run.settings.engine.name)
    source = run.settings.engine.name if kind.makes_up else kind.model_class
    path = run.checkpoint.path
    told = _alike([dataset.system_instruction for dataset in datasets.values()])
    return {
        "results": results["results"],
        **({"groups": results["groups"]} if results.get("groups") else {}),
        "group_subtasks": results.get("group_subtasks", {}),
        "configs": dict(sorted(configs.items())),
        "versions": results["versions"],
        "n-shot": results["n_shot"],
        "higher_is_better": results["higher_is_better"],
        "n-samples": results["n_samples"],
        "config": _model_config(run, source),
        "git_hash": None,
        "date": run.created,
        "lm_eval_version": ", ".join(sorted({found.harness for found in scored} - {""})) or None,
        "max_length": run.max_length,
        "task_hashes": {},
        "model_source": source,
        "model_name": path,
        "model_name_sanitized": re.sub(r'["<>:/|\\?*\[\]]+', "__", path),
        "system_instruction": told,
        "system_instruction_sha": hashlib.sha256(told.encode()).hexdigest() if told else None,
        "fewshot_as_multiturn": _alike([d.fewshot_as_multiturn for d in datasets.values()]),
        "chat_template": None,
        "chat_template_sha": None,
        "total_evaluation_time_seconds": str(results["seconds"]),
    }


def _model_config(run: Run, source: str) -> dict[str, Any]:
    """Return the options that the harness's command would have had for this model."""
    return {
        "model": source,
        "model_args": {"pretrained": run.checkpoint.path, **run.settings.engine.args},
        "model_num_parameters": run.checkpoint.parameters,
        "model_dtype": run.checkpoint.dtype,
        "batch_size": None,
        "batch_sizes": [],
        "device": None,
        "use_cache": None,
        "limit": _alike([dataset.limit for dataset in run.suite.datasets]),
        "bootstrap_iters": 100_000,
        "gen_kwargs": None,
        "random_seed": 0,
        "numpy_seed": _SEED,
        "torch_seed": _SEED,
        "fewshot_seed": _SEED,
    }


def _config(dataset: Dataset, task: str, found: DatasetResults) -> dict[str, Any]:
    """Return what is known of a task's configuration: the options of its dataset."""
    options = dataset.model_dump(
        include={"repeats", "system_instruction", "chat_template", "fewshot_as_multiturn"},
        exclude_defaults=True,
    )
    return {
        "task": task,
        "num_fewshot": found.n_shot.get(task),
        **({"generation_kwargs": dataset.gen_kwargs} if dataset.gen_kwargs else {}),
        **options,
        "metadata": {**dataset.metadata, "version": found.versions.get(task)},
    }


def _alike(values: Sequence[Any]) -> Any:  # noqa: ANN401  any option's value
    """Return the value that all datasets have, None if they differ."""
    return values[0] if values and all(value == values[0] for value in values) else None


def model_card(run: Run, results: Mapping[str, Any], scored: Sequence[DatasetResults]) -> str:
    """Return a Markdown table with a row for each dataset, for a model card.

    The arguments are those of `lm_eval_results`.
    """
    rows = [("dataset", "metric", "n-shot", "score", "± stderr"), ("---", "---", *["---:"] * 3)]
    for found in scored:
        score = main_score(found)
        if score is not None:
            rows.append((found.dataset, score.metric, _shots(found), *_cells(score)))
    lines = ["| " + " | ".join(each.replace("|", "\\|") for each in row) + " |" for row in rows]
    versions = ", ".join(sorted({found.harness for found in scored} - {""}))
    about = (
        f"{PurePath(run.checkpoint.path).name}, suite {run.suite.name} ({run.suite.digest[:12]}), "
        f"coordinate-eval {results['coordinate_eval_version']}"
    )
    about += f", lm-evaluation-harness {versions}" if versions else ""
    missing = [*results["missing"], *results.get("left_out", {})]
    notes = [f"Without: {', '.join(missing)}."] if missing else []
    limits = {dataset.limit for dataset in run.suite.datasets} - {None}
    notes += [f"Rated by {name}: {', '.join(each)}." for name, each in _judged(scored).items()]
    notes += ["Some datasets are limited to their first items."] if limits else []
    if stopped := results.get("stopped"):
        names = ", ".join(f"{n} ({of['items']} of {of['of_items']})" for n, of in stopped.items())
        early = cut_short(run, {name: of["items"] for name, of in stopped.items()})
        words = "Stopped early, with a part" if early else "With a random sample"
        notes.append(f"{words} of the items: {names}.")
    return "\n".join([*lines, "", " ".join([f"{about}.", *notes])]) + "\n"


def _judged(scored: Sequence[DatasetResults]) -> dict[str, list[str]]:
    """Return the judges, and the datasets that each of them rated."""
    judged: dict[str, list[str]] = {}
    for found in scored:
        if found.judge:
            name = judge_name(found.judge.get("model", ""), found.judge.get("revision", ""))
            judged.setdefault(name, []).append(found.dataset)
    return judged


def _shots(found: DatasetResults) -> str:
    """Return the number of examples, or those of a group's tasks if they differ."""
    own = found.n_shot.get(found.dataset)
    numbers = [own] if isinstance(own, int) else sorted(set(map(str, found.n_shot.values())))
    return ", ".join(map(str, numbers))


def _cells(score: Score) -> tuple[str, str]:
    return f"{score.value:.4f}", "" if score.stderr is None else f"{score.stderr:.4f}"

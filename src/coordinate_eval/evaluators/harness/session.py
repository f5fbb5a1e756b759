"""Change the harness while a process works with it.

The harness compiles a template for every document, shot and choice that it renders. Compiled once,
it renders the same text, and building and scoring take a fraction of the CPU time.

It computes bootstrapped standard errors in a pool of forked processes: one for each core of the
machine, even if the job has a single core. A fork of a process with threads can hang, and it
outlives a scorer that is killed. Here the same numbers are computed without processes, in about a
third of the CPU time. An aggregation with a method `stderr` knows its own standard error, which the
harness then takes.

Scripts are refused that `datasets` and `evaluate` would find by a name and run: beside the data, or
in the working folder. Whoever can put a file there would be trusted like a task. Metrics of a hub
stay: a task asks for them by name.
"""

import functools
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, Template
from lm_eval import evaluator_utils, utils
from lm_eval.api import metrics

from coordinate_eval.errors import UserError
from coordinate_eval.evaluators import own_code
from coordinate_eval.evaluators.around_import import around_import, hidden
from coordinate_eval.evaluators.harness.code_eval import stand_in

_MOST_TEMPLATES = 4096
"""Templates kept compiled: some kilobytes each. A task has a few."""

_CHUNK = 1000
"""Number of resamples that the harness draws from one seed."""


@contextmanager
def harness_session() -> Iterator[None]:
    """Prepare this process for work of the harness inside the block.

    Its output goes to stderr, standard errors are computed without processes, templates are
    compiled once, and the global random generators are restored afterwards. From then on,
    `code_eval` is replaced by a look-up, and code of checkpoints and scripts beside data are
    refused.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        refuse_scripts()
        stand_in()
        with redirect_stdout(sys.stderr), bootstrapped_here(), compiled_once():
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


@lru_cache(_MOST_TEMPLATES)
def _compiled(source: str) -> Template:
    template: Template = Environment.from_string(utils.env, source)
    return template


@contextmanager
def compiled_once() -> Iterator[None]:
    """Compile each template of the harness once inside the block."""
    outer = vars(utils.env).get("from_string")
    utils.env.from_string = _compiled
    try:
        yield
    finally:
        if outer is None:
            del utils.env.from_string
        else:
            utils.env.from_string = outer


def bootstrap_stderr(
    statistic: Callable[[Sequence[Any]], float], values: Sequence[Any], iters: int
) -> float:
    """Return the standard deviation of a statistic over `iters` resamples of `values`.

    The result equals the harness's to the last bit. The harness draws with
    `random.Random(seed).choices`. Its numbers are those of numpy's Mersenne Twister seeded with
    `[seed]`, scaled and truncated to integers.
    """
    array = np.asarray(values) if all(type(value) is float for value in values) else None
    size = min(_CHUNK, iters)
    found: list[float] = []
    for seed in range(iters // size):
        twister = np.random.RandomState([seed])
        for _ in range(size):
            drawn = (twister.random_sample(len(values)) * len(values)).astype(np.intp)
            resample = [values[i] for i in drawn] if array is None else array[drawn].tolist()
            found.append(statistic(resample))
    return float(metrics.sample_stddev(found))


@contextmanager
def bootstrapped_here() -> Iterator[None]:
    """Let the harness compute standard errors as this module does inside the block."""
    real, real_choice = metrics.bootstrap_stderr, evaluator_utils.stderr_for_metric

    def stderr_for_metric(metric: Any, bootstrap_iters: int) -> Any:  # noqa: ANN401  as there
        return getattr(metric, "stderr", None) or real_choice(metric, bootstrap_iters)

    metrics.bootstrap_stderr = bootstrap_stderr
    evaluator_utils.stderr_for_metric = stderr_for_metric
    try:
        yield
    finally:
        metrics.bootstrap_stderr = real
        evaluator_utils.stderr_for_metric = real_choice


_FORMATS = "datasets.packaged_modules."
"""Prefix of the modules of formats that `datasets` reads itself."""


@functools.cache
def refuse_scripts() -> None:
    """Refuse, from now on in this process, scripts beside data and code of checkpoints."""
    import datasets.load

    own_code.refuse()
    datasets.load.import_main_class = _only_formats(datasets.load.import_main_class)
    # It takes a while, and few tasks need it.
    around_import("evaluate", _importing_evaluate)


@contextmanager
def _importing_evaluate() -> Iterator[None]:
    """Let the import of `evaluate` draw no random numbers, and have it run no metric by its name.

    Else what a task draws would depend on which tasks this process has met before. Of transformers
    it has a use for pipelines of models, which take four CPU seconds to import. Metrics have none.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with hidden("transformers"):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
    import evaluate.loading

    factory = evaluate.loading.LocalEvaluationModuleFactory
    evaluate.loading.LocalEvaluationModuleFactory = _only_given(factory)


def _only_formats(load: Any) -> Any:  # noqa: ANN401  datasets has no types here
    @functools.wraps(load)
    def guarded(module_path: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if not module_path.startswith(_FORMATS):
            raise UserError(
                f"the data set's loading script {module_path} is not run: give its data in files, "
                "such as JSON lines or Parquet"
            )
        return load(module_path, *args, **kwargs)

    return guarded


def _only_given(factory: Any) -> Any:  # noqa: ANN401  evaluate has no types
    @functools.wraps(factory)
    def guarded(path: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if not Path(path).is_absolute():
            raise UserError(
                f"{Path(path).absolute()} is not run as a metric, for it may be anybody's: rename "
                "it, or give the metric to the task with !function"
            )
        return factory(path, *args, **kwargs)

    return guarded

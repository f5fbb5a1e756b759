"""The weight of a measurement in a prediction: by its age, and by what differs.

A measurement of equal conditions weighs 1 when it is new.
"""

import math
from functools import lru_cache

from coordinate_eval._engines import kind_of
from coordinate_eval.priors import gpus
from coordinate_eval.priors.roofline import Conditions, Model

HALF_LIFE_DAYS = 60.0
"""Age at which a measurement has lost half its weight: engines, drivers and clusters change."""

LEAST_AGE_WEIGHT = 0.02
"""Weight that a measurement keeps at any age, so that it counts where there is no other."""

UNLIKE = 0.1
"""Factor on the weight of a measurement for each condition in which it differs: the model, its
tensor-parallel degree, the engine or its version, the number of sequences at once, the GPU, the
settings of the task, and, for a copy of weights, the storage and the format."""

SIZE_RATIO = 4.0
"""Ratio of two sizes at which the weight falls by another factor of e."""


def of_age(time: float, now: float) -> float:
    """Return the weight of a measurement by its age, from two times in seconds."""
    days = max(0.0, now - time) / 86_400
    return max(LEAST_AGE_WEIGHT, math.exp2(-days / HALF_LIFE_DAYS))


def unlike(*differences: bool) -> float:
    """Return the factor on a weight for conditions that differ."""
    return UNLIKE ** sum(differences)


def of_size(seen: float, size: float) -> float:
    """Return 1 for the same size, and 1/e for a size `SIZE_RATIO` times as large or small."""
    return math.exp(-abs(math.log(seen / size)) / math.log(SIZE_RATIO))


@lru_cache(maxsize=4096)
def of_model(seen: Model, model: Model) -> float:
    """Return the weight of a measurement by its model; 1 for checkpoints of one training run."""
    degrees = seen.tensor_parallel, seen.pipeline_parallel
    like = unlike(degrees != (model.tensor_parallel, model.pipeline_parallel))
    if (seen.family, seen.parameters, seen.dtype) == (model.family, model.parameters, model.dtype):
        return like
    return like * unlike(True) * of_size(seen.parameters, model.parameters)


def of_answers(seen: Conditions, on: Conditions) -> float:
    """Return the weight of a measurement's answers, which may be of another model."""
    return of_model(seen.model, on.model) if same_kind(seen.engine, on.engine) else 0.0


def of_conditions(seen: Conditions, on: Conditions) -> float:
    """Return the weight of a measurement by its conditions; 1 if they are the same."""
    return of_answers(seen, on) * unlike(
        (seen.engine, seen.engine_version) != (on.engine, on.engine_version),
        seen.sequences != on.sequences,
        _processor(seen.gpu) != _processor(on.gpu),
    )


def _processor(gpu: str) -> str:
    """Return one name for a type of GPU however a cluster spells it; CPUs differ by model."""
    name = gpus.name(gpu)
    return gpu if name == "cpu" else name


def same_engine(seen: Conditions, on: Conditions) -> bool:
    """Return whether both have the same engine on the same type of GPU."""
    return (seen.engine, gpus.name(seen.gpu)) == (on.engine, gpus.name(on.gpu))


def same_kind(seen: str, engine: str) -> bool:
    """Return whether both engines' answers are a model's, or both made up."""
    return kind_of(seen).makes_up == kind_of(engine).makes_up

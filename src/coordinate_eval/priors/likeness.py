"""The weight of an observation in a prediction: by its age, and by what differs.

An observation of equal conditions weighs 1 when it is new.
"""

import math
from functools import lru_cache

from coordinate_eval._engines import kind_of
from coordinate_eval.priors import fit, gpus
from coordinate_eval.priors.observations import Seen, StageSeen, Subject
from coordinate_eval.priors.roofline import Conditions, Model

HALF_LIFE_DAYS = 60.0
"""Age at which an observation has lost half its weight: engines, drivers and clusters change."""

LEAST_AGE_WEIGHT = 0.02
"""Weight that an observation keeps at any age, so that it counts where there is no other."""

UNLIKE = 0.1
"""Factor on the weight of an observation for each condition in which it differs: the model, its
tensor-parallel degree, the engine or its version, the number of sequences at once, the GPU, the
settings of the task, and, for a copy of weights, the storage and the format."""

SIZE_RATIO = 4.0
"""Ratio of two sizes at which the weight falls by another factor of e."""


def of_age(seen: Seen, now: float) -> float:
    """Return the weight of an observation by its age."""
    days = max(0.0, now - seen.time) / 86_400
    return max(LEAST_AGE_WEIGHT, math.exp2(-days / HALF_LIFE_DAYS))


def of_conditions(seen: Conditions, on: Conditions) -> float:
    """Return the weight of an observation by its conditions; 1 if they are the same."""
    differences = (
        (seen.engine, seen.engine_version) != (on.engine, on.engine_version),
        seen.sequences != on.sequences,
        _processor(seen.gpu) != _processor(on.gpu),
    )
    return of_answers(seen, on) * UNLIKE ** sum(differences)


def same_engine(seen: Conditions, on: Conditions) -> bool:
    """Return whether both have the same engine on the same type of GPU."""
    return fit.of_conditions(seen) == fit.of_conditions(on)


def _processor(gpu: str) -> str:
    """Return one name for a type of GPU however a cluster spells it; CPUs differ by model."""
    name = gpus.name(gpu)
    return gpu if name == "cpu" else name


@lru_cache(maxsize=4096)
def of_model(seen: Model, model: Model) -> float:
    """Return the weight of an observation by its model; 1 for checkpoints of one training run."""
    like = _weight(alike=seen.tensor_parallel == model.tensor_parallel)
    same = (seen.family, seen.parameters, seen.dtype) == (
        model.family,
        model.parameters,
        model.dtype,
    )
    if same:
        return like
    return like * UNLIKE * of_size(seen.parameters, model.parameters)


def of_size(seen: float, size: float) -> float:
    """Return 1 for the same size, and 1/e for a size `SIZE_RATIO` times as large or small."""
    return math.exp(-abs(math.log(seen / size)) / math.log(SIZE_RATIO))


def of_answers(seen: Conditions, on: Conditions) -> float:
    """Return the weight of an observation's answers, which may be of another model."""
    return of_model(seen.model, on.model) if same_kind(seen.engine, on.engine) else 0.0


def same_kind(seen: str, engine: str) -> bool:
    """Return whether both engines' answers are a model's, or both made up."""
    return kind_of(seen).makes_up == kind_of(engine).makes_up


def of_settings(seen: Subject, subject: Subject) -> float:
    """Return the weight of an observation by the settings of its task."""
    return _weight(alike=seen.settings == subject.settings)


def of_copy(seen: StageSeen, on: Conditions, storage: str, *, converted: bool) -> float:
    """Return the weight of a copy of weights for one from this storage to nodes with this GPU."""
    return (
        of_size(seen.bytes, on.model.bytes)
        * _weight(alike=seen.storage == storage)
        * _weight(alike=seen.converted == converted)
        * _weight(alike=gpus.name(seen.conditions.gpu) == gpus.name(on.gpu))
    )


def _weight(*, alike: bool) -> float:
    return 1.0 if alike else UNLIKE

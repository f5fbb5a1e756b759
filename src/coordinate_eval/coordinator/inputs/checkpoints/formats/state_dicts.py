"""State dicts in what torch.save wrote: the tensors of a model among all that trainers save."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import check_name
from coordinate_eval.coordinator.inputs.checkpoints.formats.torch_pickle import HOW_TO_SAVE
from coordinate_eval.errors import UserError

T = TypeVar("T")

_STATE_KEYS = ("model_state_dict", "state_dict", "model", "module", "app", "state")
# Beginnings of the keys of what else trainers save.
_OTHER_KEYS = ("optim", "lr_", "sched", "scaler", "rng", "ema", "train", "data", "loss", "metric")
_MOST_DEPTH = 4  # of nested dicts with tensors
_MOST_ENTRIES = 1_000_000  # of these: a dict may be an entry of others, and of itself


def leaves(tree: object, path: Path, kind: type[T]) -> dict[str, T]:
    """Return the state dict in a saved object: the object itself, or under a trainer's key.

    Its tensors are of type `kind`. Everything else, such as an optimizer's state, is left out.
    Names of nested dicts are joined.

    Raises:
        UserError: There is none; says what was found instead.
    """
    inside = tree
    for _ in range(_MOST_DEPTH):
        # Three times, because one may lie in another; no more often: a dict may contain itself.
        for key in _STATE_KEYS * 3:
            if isinstance(inside, dict) and isinstance(inside.get(key), dict):
                inside = inside[key]
        if not isinstance(inside, dict):
            break
        found = _found(inside, path, kind, 0) or _found(inside, path, kind, _MOST_DEPTH)
        if found:
            return found
        if len(inside) != 1:
            break
        (inside,) = inside.values()  # all is under one name, whatever that is
    some = [repr(key)[:60] for key in list(tree)[:8]] if isinstance(tree, dict) else []
    shown = f"a dict of {', '.join(some)} has no tensors" if some else "it is no dict of tensors"
    raise UserError(f"{path} holds no state dict ({shown}). {HOW_TO_SAVE}")


def _found(tree: Mapping[Any, Any], path: Path, kind: type[T], depth: int) -> dict[str, T]:
    left = iter(range(_MOST_ENTRIES))
    found: dict[str, T] = {}
    for name, leaf in _leaves(tree, kind, depth, left):
        check_name(name, path)
        found[name] = leaf
    if next(left, None) is None:
        raise UserError(f"{path} holds more than tensors. {HOW_TO_SAVE}")
    return found


def _leaves(
    tree: Mapping[Any, Any], kind: type[T], depth: int, left: Iterator[int]
) -> Iterator[tuple[str, T]]:
    """Yield names and tensors until none of the numbers of entries is left."""
    for (key, value), _ in zip(tree.items(), left, strict=False):
        if not isinstance(key, str):
            continue
        if isinstance(value, kind):
            yield key, value
        elif depth and isinstance(value, dict) and not key.startswith(_OTHER_KEYS):
            below = _leaves(value, kind, depth - 1, left)
            yield from ((f"{key}.{name}", leaf) for name, leaf in below)

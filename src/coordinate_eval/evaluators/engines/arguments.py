"""Messages for engine arguments that are wrong. They are the same for every engine."""

import difflib
from collections.abc import Iterable
from typing import Any

from coordinate_eval.errors import UserError

_LISTED = 12
"""Number of known names up to which a message lists them all."""


def check_names(engine: str, args: Iterable[str], known: Iterable[str]) -> None:
    """Check that `engine` knows every argument.

    Raises:
        UserError: for the first that it does not know, with the nearest known name.
    """
    names = sorted(known)
    for name in args:
        if name not in names:
            raise UserError(f"{engine} has no engine argument {name!r}: {_advice(name, names)}")


def wrong(name: str, value: Any, wanted: str) -> UserError:  # noqa: ANN401 - any JSON value
    """Return the error for a value that the engine does not take."""
    return UserError(f"engine argument {name} is {value!r}, and must be {wanted}")


def _advice(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name.strip("-").replace("-", "_").lower(), known, n=1)
    if near:
        return f"did you mean {near[0]}?"
    if len(known) <= _LISTED:
        return f"it has {', '.join(known)}"
    return "see its documentation, or leave it out"

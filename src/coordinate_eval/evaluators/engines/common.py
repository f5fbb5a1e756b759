"""What the engines that run a model agree on: which requests they take, and how they refuse.

Both must answer alike, so every rule that does not depend on the library stands here:

- a prompt leaves room for one token in the model's context, and what is generated is cut where
  the context ends; how long a scored text may be is each engine's own;
- text keeps special tokens, so that stop strings made of them are seen, but not the token that
  ended it; a torn UTF-8 sequence at its end is left out;
- a continuation is greedy if none of its tokens has a likelier rival.
"""
# The libraries of the extras have no types here: they may be absent while types are checked.
# ruff: noqa: ANN401

import importlib
import math
import os
import sys
from typing import Any, Literal

from coordinate_eval.errors import EngineError, UserError
from coordinate_eval.records import Key, Request, RequestKind, Response

SAMPLING = {
    # name: (default, least, most, whether it is a whole number)
    "temperature": (1.0, 0.0, 2.0, False),
    "top_p": (1.0, 1e-9, 1.0, False),
    "top_k": (0, -1, 2**31 - 1, True),
    "min_p": (0.0, 0.0, 1.0, False),
    "repetition_penalty": (1.0, 1e-9, math.inf, False),
    "seed": (-1, -1, 2**63 - 1, True),
}
"""What `Request.sampling` may hold. A `top_k` below 1 and a `seed` of -1 mean none."""

GREEDY_BELOW = 1e-5
"""A temperature below this means greedy, as in vLLM."""

_UNNEEDED = ("torchvision", "torchaudio", "torchcodec")
"""Packages that transformers imports where it finds them, and text models never use."""


def load(module: str, install: str) -> Any:
    """Import a module of an optional extra; nothing may reach for a hub from here on.

    Raises:
        UserError: it is missing, or something that it needs is broken.
    """
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        os.environ.setdefault(name, "1")
    _hide_broken()
    try:
        return importlib.import_module(module)
    except Exception as error:  # a broken binary raises anything, not only ImportError
        raise UserError(
            f"this engine needs {module}, which cannot be imported here ({last_words(error)}): "
            f"run `pip install '{install}'` in the environment that jobs use"
        ) from error


def last_words(error: BaseException) -> str:
    """The kind and the last line of an exception: a message that fits on a line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[-1].startswith("For further information"):  # pydantic's advert
        lines.pop()
    return f"{type(error).__name__}: {lines[-1][:500]}" if lines else type(error).__name__


def named(request: Request) -> str:
    """Which request this is, for an error message."""
    return (
        f"dataset {request.dataset!r}, task {request.task!r}, document {request.doc}, "
        f"request {request.index}, repeat {request.repeat}, window {request.window}"
    )


def check(request: Request, *, max_length: int, most_scored: int, vocabulary: int) -> None:
    """Refuse what cannot be answered, before it can end the answers of others.

    `most_scored` are the tokens of a log-likelihood, context and continuation together.

    Raises:
        EngineError: naming the request and what is wrong with it.
    """
    tokens = [*request.tokens, *request.continuation]
    scores = request.kind is RequestKind.LOGLIKELIHOOD
    most = most_scored if scores else max_length - 1
    if not request.tokens:
        wrong = "its prompt has no tokens"
    elif not 0 <= min(tokens) <= max(tokens) < vocabulary:
        wrong = f"it has token ids outside of the model's 0 to {vocabulary - 1}"
    elif len(tokens) > most:
        wrong = f"its {len(tokens)} tokens do not fit, {most} do in a context of {max_length}"
    elif scores and not request.continuation:
        wrong = "its continuation has no tokens"
    elif not scores and request.max_tokens < 1:
        wrong = f"it asks for {request.max_tokens} tokens"
    else:
        return
    raise EngineError(f"cannot answer {named(request)}: {wrong}")


def sampling(request: Request) -> dict[str, Any]:
    """All of `SAMPLING` as the request wants it; greedy if it wants nothing.

    Raises:
        EngineError: unknown names, or values out of range.
    """
    if not request.sampling:
        return {name: default for name, (default, *_) in SAMPLING.items()} | {"temperature": 0.0}
    if unknown := sorted(request.sampling.keys() - SAMPLING.keys()):
        raise EngineError(
            f"cannot answer {named(request)}: unknown sampling parameters "
            f"{', '.join(unknown)}; known are {', '.join(SAMPLING)}"
        )
    chosen: dict[str, Any] = {}
    for name, (default, least, most, whole) in SAMPLING.items():
        value = request.sampling.get(name, default)
        if not (least <= value <= most and math.isfinite(value) and (not whole or value % 1 == 0)):
            raise EngineError(
                f"cannot answer {named(request)}: {name} is {value}, which is not "
                f"{'a whole number ' if whole else ''}from {least} to {most}"
            )
        chosen[name] = int(value) if whole else value
    return chosen


def stops(request: Request) -> list[str]:
    """Its stop strings; an empty one stops nothing."""
    return [stop for stop in request.stop if stop]


def respond(
    request: Request,
    *,
    tokens: int,
    finish: Literal["stop", "length", "scored"],
    text: str | None = None,
    logprob: float | None = None,
    greedy: bool | None = None,
) -> Response:
    """The response to this request: its key, and the answer as `Response` describes it."""
    key = {name: getattr(request, name) for name in Key.model_fields}
    return Response(**key, text=text, logprob=logprob, greedy=greedy, tokens=tokens, finish=finish)


def _hide_broken() -> None:
    """Treat as absent what is installed for another build of torch and fails to import."""
    for name in _UNNEEDED:
        try:
            importlib.import_module(name)
        except Exception:
            sys.modules[name] = None  # type: ignore[assignment]  # how Python spells "absent"

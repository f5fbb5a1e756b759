"""The rules that the engines share, so that both give the same answers.

- A prompt leaves room for at least one token in the model's context. A generated text ends where
  the context ends. The most tokens of a scored text differ between the engines.
- A text keeps special tokens, so that stop strings made of them are found. It omits the token
  that ended it, and an incomplete UTF-8 sequence at its end.
- A continuation is greedy if none of its tokens has a more likely alternative.
"""
# The libraries of the extras have no types here: they may be absent while types are checked.
# ruff: noqa: ANN401

import difflib
import gc
import hashlib
import importlib
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from coordinate_eval.errors import EngineError, UserError
from coordinate_eval.evaluators import own_code
from coordinate_eval.records import Key, Request, RequestKind, Response, Turn

SAMPLING = {
    # name: (default, least, most, whether it is a whole number)
    "temperature": (1.0, 0.0, 2.0, False),
    "top_p": (1.0, 1e-9, 1.0, False),
    "top_k": (0, -1, 2**31 - 1, True),
    "min_p": (0.0, 0.0, 1.0, False),
    "repetition_penalty": (1.0, 1e-9, math.inf, False),
    "seed": (-1, -1, 2**63 - 1, True),
}
"""The names allowed in `Request.sampling`. A `top_k` below 1 means none, and a `seed` of -1
one of the request's own."""

GREEDY_BELOW = 1e-5
"""A temperature below this means greedy decoding, as in vLLM."""

THREADS = "OMP_NUM_THREADS"
"""The variable with the most threads of torch and its libraries, which read it once."""

_UNNEEDED = ("torchvision", "torchaudio", "torchcodec")
"""Packages that transformers imports if they are installed. Text models never use them."""

_OTHERS_ONLY = ("sklearn",)
"""A package that an engine's import loads for other uses: for transformers, guesses of drafts."""


def load(module: str, install: str) -> Any:
    """Import a module of an optional extra.

    From then on, the process and its children contact no hub, and run no code of a checkpoint.

    No garbage is looked for meanwhile, because an import keeps nearly all that it makes, and what
    no engine uses is absent: vLLM's import takes 6.8 instead of 9.3 seconds of CPU, and that of
    transformers' models 3.8 instead of 5.3 (medians of three).

    Raises:
        UserError: the module is missing, or one of its dependencies is broken.
    """
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        os.environ.setdefault(name, "1")
    os.environ.update(own_code.environment())
    _hide_broken()
    collects = gc.isenabled()
    gc.disable()
    absent = [name for name in _OTHERS_ONLY if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None: see `_hide_broken`
    try:
        return importlib.import_module(module)
    except Exception as error:  # a broken binary raises anything, not only ImportError
        raise UserError(
            f"this engine needs {module}, which cannot be imported here ({last_words(error)}): "
            f"run `pip install '{install}'` in the environment that jobs use"
        ) from error
    finally:
        for name in absent:
            del sys.modules[name]
        if collects:
            gc.enable()


def limit_threads(threads: int) -> bool:
    """Limit the threads of libraries that are imported from now on, in child processes as well.

    Return False, and leave all as it is, if somebody has done so, or `threads` is 0.
    """
    if not threads or THREADS in os.environ:
        return False
    os.environ[THREADS] = str(threads)
    return True


def last_words(error: BaseException) -> str:
    """Return the type, the first and the last line of an exception, as a message of one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[-1].startswith("For further information"):  # pydantic's advert
        lines.pop()
    words = " … ".join(line[:500] for line in dict.fromkeys([*lines[:1], *lines[-1:]]))
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def named(request: Request) -> str:
    """Return the identity of a request, for an error message."""
    return (
        f"dataset {request.dataset!r}, task {request.task!r}, document {request.doc}, "
        f"request {request.index}, repeat {request.repeat}, window {request.window}"
    )


def check(request: Request, *, max_length: int, most_scored: int, vocabulary: int) -> None:
    """Refuse a request that cannot be answered, before it fails a whole batch.

    `max_length` is in tokens, prompt and output together. `most_scored` is the most tokens of a
    log-likelihood, context and continuation together.

    Raises:
        EngineError: the request cannot be answered; the message names it and the reason.
    """
    tokens = [*request.tokens, *request.continuation]
    known = [*tokens, *itertools.chain.from_iterable(request.follow_ups)]
    scores = request.kind is RequestKind.LOGLIKELIHOOD
    most = most_scored if scores else max_length - 1
    if not request.tokens:
        wrong = "its prompt has no tokens"
    elif not 0 <= min(known) <= max(known) < vocabulary:
        wrong = f"it has token ids outside of the model's 0 to {vocabulary - 1}"
    elif len(tokens) > most:
        wrong = f"it has {len(tokens)} tokens; at most {most} fit into a context of {max_length}"
    elif scores and not request.continuation:
        wrong = "its continuation has no tokens"
    elif not scores and request.max_tokens < 1:
        wrong = f"it asks for {request.max_tokens} tokens"
    else:
        return
    raise EngineError(f"cannot answer {named(request)}: {wrong}")


def sampling(request: Request) -> dict[str, Any]:
    """Return the request's value, or the default, of every parameter in `SAMPLING`.

    A request that gives none is decoded greedily. One that is sampled without a seed has one from
    its own identity and prompt: it gets the same text wherever and with whatever else it runs.

    Raises:
        EngineError: the request has an unknown parameter, or a value out of range.
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
    if chosen["seed"] < 0 and chosen["temperature"] >= GREEDY_BELOW:
        named_so = repr([*request.identity(), request.prompt_hash])
        chosen["seed"] = int.from_bytes(hashlib.sha256(named_so.encode()).digest()[:4])
    return chosen


def stops(request: Request) -> list[str]:
    """Return the stop strings of a request, without empty ones, which would stop nothing."""
    return [stop for stop in request.stop if stop]


def respond(
    request: Request,
    *,
    tokens: int,
    finish: Literal["stop", "length", "scored"],
    text: str | None = None,
    logprob: float | None = None,
    greedy: bool | None = None,
    turns: Sequence[Turn] = (),
) -> Response:
    """Return the response with the key of this request and the given answer."""
    key = {name: getattr(request, name) for name in Key.model_fields}
    return Response(
        **key,
        text=text,
        logprob=logprob,
        greedy=greedy,
        tokens=tokens,
        finish=finish,
        turns=list(turns),
    )


def probe(kind: RequestKind, tokens: Sequence[int], /, **fields: Any) -> Request:
    """Return a request of no dataset, with which an engine is tried."""
    key = {"dataset": "probe", "item": 0, "task": "probe", "doc": 0, "prompt_hash": ""}
    return Request.model_validate(key | {"kind": kind, "tokens": tokens} | fields)


def check_probed(response: Response) -> float:
    """Return the log-likelihood of a text with which an engine was tried."""
    if response.logprob is None or not response.logprob <= 0:  # also if it is no number
        raise EngineError(
            f"a text has the log-likelihood {response.logprob}: are all weights finite?"
        )
    return response.logprob


def inner_tokens(encode: Callable[[str], list[int]], text: str) -> list[int]:
    """Return the tokens of a text that has others before it.

    Some tokenizers put a space before a text. So it is encoded behind a letter, if the two have no
    token in common. `encode` returns the tokens of a text, without special ones around it.
    """
    letter = encode("a")
    both = encode(f"a{text}")
    return both[len(letter) :] if both[: len(letter)] == letter else encode(text)


def _hide_broken() -> None:
    """Treat unneeded packages that fail to import as absent.

    They are often installed for another build of torch.
    """
    for name in _UNNEEDED:
        try:
            importlib.import_module(name)
        except Exception:
            sys.modules[name] = None  # type: ignore[assignment]  # how Python spells "absent"


def hidden() -> list[str]:
    """Return the unneeded packages that this process treats as absent."""
    return [name for name in _UNNEEDED if name in sys.modules and sys.modules[name] is None]


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


def wrong(name: str, value: Any, wanted: str) -> UserError:
    """Return the error for a value that the engine does not take."""
    return UserError(f"engine argument {name} is {value!r}, and must be {wanted}")


def _advice(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name.strip("-").replace("-", "_").lower(), known, n=1)
    if near:
        return f"did you mean {near[0]}?"
    if len(known) <= _LISTED:
        return f"it has {', '.join(known)}"
    return "see its documentation, or leave it out"

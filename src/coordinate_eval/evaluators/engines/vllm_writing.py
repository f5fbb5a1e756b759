"""A text that vLLM writes: one request to it, or one for each turn of a conversation."""
# ruff: noqa: ANN401  vLLM has no types here

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coordinate_eval.errors import EngineError
from coordinate_eval.evaluators.engines import common
from coordinate_eval.evaluators.engines.turns import Decoder, Turns, tokens_of
from coordinate_eval.evaluators.engines.vllm_defaults import on_cpu
from coordinate_eval.records import Request, Response


@dataclass(frozen=True)
class Text:
    """One request to vLLM: tokens, and how to continue them."""

    tokens: list[int]
    request: Request

    def settings(self) -> dict[str, Any]:
        """Return the arguments of `SamplingParams`."""
        wanted = common.sampling(self.request)
        return wanted | {
            "seed": self._seed(wanted["seed"]),
            "max_tokens": self.request.max_tokens,
            "stop": common.stops(self.request),
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
        }

    def _seed(self, wanted: int) -> int | None:
        # On a CPU, vLLM's runner V1 fails at a seed if a step ends within the prompt: a generator
        # has no offset there. So only a seed that somebody asks for is given to it.
        own = self.request.sampling.get("seed", -1) < 0
        return None if wanted < 0 or (own and on_cpu()) else wanted


class Writing:
    """The text of one request, or the texts of its turns: one request to vLLM after the other."""

    def __init__(self, request: Request, max_length: int, tokenizer: Any) -> None:
        self.requests: Sequence[Request] = [request]
        self._turns = Turns(request, max_length)
        self._tokenizer = tokenizer

    def asks(self) -> list[Text]:
        """Return what to ask first, or next."""
        return [Text(self._turns.prompt, self._turns.request)]

    def take(self, ask: Text, output: Any) -> tuple[list[Response], list[Text]]:
        """Take a finished `RequestOutput`. Return the response, or the next turn to ask for.

        Raises:
            EngineError: vLLM gave up.
        """
        answer = output.outputs[0]
        if answer.finish_reason not in ("stop", "length"):
            raise EngineError(
                f"vLLM ended {common.named(ask.request)} for reason {answer.finish_reason!r}"
            )
        response = self._turns.add(
            answer.text,
            len(answer.token_ids),
            answer.finish_reason,
            lambda: self._said(ask.tokens, answer),
        )
        return ([], self.asks()) if response is None else ([response], [])

    def _said(self, prompt: list[int], answer: Any) -> list[int]:
        """Return the tokens of an answer without what has ended it."""
        tokens = list(answer.token_ids)
        if answer.finish_reason == "length":
            return tokens
        if not isinstance(answer.stop_reason, str):
            return tokens[:-1]
        ends: list[int] = []
        # Without it, as for a tokenizer in Python, the whole text is made into tokens again.
        if backend := getattr(self._tokenizer, "backend_tokenizer", None):
            decoder = Decoder(backend, prompt)
            ends = list(itertools.accumulate(len(decoder.add(token)) for token in tokens))
        encode = functools.partial(self._tokenizer.encode, add_special_tokens=False)
        return tokens_of(answer.text, tokens, ends, encode)

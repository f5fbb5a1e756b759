"""The turns of a conversation, by rules that all engines share.

- The prompt of the next turn is the last prompt, the tokens of its answer, and the follow-up.
- Of an answer, the token that ended it is left out. An answer that a stop string ended is cut
  before that string: what remains of a token that the cut divides is made into tokens again.
- A prompt that leaves no room for `max_tokens` loses its beginning, as the first one did when it
  was built. So what was said first is forgotten first.
- All turns have the request's stop strings, limit and sampling parameters.
"""
# The libraries of the extras have no types here: they may be absent while types are checked.
# ruff: noqa: ANN401

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Literal

from coordinate_eval.evaluators.engines import common
from coordinate_eval.records import Request, Response, Turn


class Turns:
    """The turns of one request so far. A request without follow-ups has one."""

    def __init__(self, request: Request, max_length: int) -> None:
        self.request = request
        self.prompt = request.tokens
        """The prompt of the next answer."""
        self._room = max(1, max_length - request.max_tokens)
        self._answers: list[Turn] = []

    def add(
        self,
        text: str,
        tokens: int,
        finish: Literal["stop", "length"],
        said: Callable[[], Sequence[int]],
    ) -> Response | None:
        """Take the answer to `prompt`.

        Args:
            tokens: how many were generated.
            said: returns the tokens of the answer, see `tokens_of`. It is called if a turn follows.

        Returns:
            the response, if that was the last turn. Otherwise, `prompt` is the next one.
        """
        self._answers.append(Turn(text=text, tokens=tokens, finish=finish))
        number = len(self._answers)
        if number < self.request.turns:
            follow_up = self.request.follow_ups[number - 1]
            self.prompt = [*self.prompt, *said(), *follow_up][-self._room :]
            return None
        first, *others = self._answers
        return common.respond(
            self.request, text=first.text, tokens=first.tokens, finish=first.finish, turns=others
        )


def tokens_of(
    text: str,
    tokens: Sequence[int],
    ends: Sequence[int],
    encode: Callable[[str], list[int]],
) -> list[int]:
    """Return the tokens of an answer that a stop string has cut.

    Args:
        text: the answer before the stop string.
        tokens: all tokens that were generated.
        ends: for each token, the characters of the answer that were known after it.
        encode: returns the tokens of a text, without special ones around it.
    """
    place = bisect_right(ends, len(text))
    known = ends[place - 1] if place else 0
    # Tokens after the one that has completed these characters belong to the next.
    whole = bisect_left(ends, known) + 1 if known else 0
    return [*tokens[:whole], *common.inner_tokens(encode, text[known:])]


class Decoder:
    """An incremental decoder of the tokens that follow a prompt; `tokenizer` is of `tokenizers`."""

    def __init__(self, tokenizer: Any, prompt: list[int]) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokenizer
        self._new = DecodeStream
        self._stream = DecodeStream(ids=prompt, skip_special_tokens=False)

    def add(self, token: int) -> str:
        """Return the characters that this token completes: none, one or several."""
        try:
            return self._stream.step(self._tokenizer, token) or ""
        except Exception as error:
            if "Invalid prefix" not in str(error):
                raise
            # The stream fails on tokens whose text changes with the next token: start a new one.
            self._stream = self._new(skip_special_tokens=False)
            return self._stream.step(self._tokenizer, token) or ""

"""One text that the transformers engine is generating: its next token, characters and end.

The rules are vLLM's, so that both engines give the same answers:

- An incremental decoder, which knows the prompt, turns tokens into characters. It withholds
  incomplete UTF-8.
- An end token ends the text. It is counted, but not written.
- After each token, stop strings are looked for first, and the length is checked second.
"""
# The libraries of the extras have no types here: they may be absent while types are checked.
# ruff: noqa: ANN401

from collections.abc import Collection
from typing import Any, Literal

from coordinate_eval.evaluators.engines import common
from coordinate_eval.evaluators.engines.turns import Decoder, Turns, tokens_of
from coordinate_eval.records import Response


class Text:
    """The text that the model has written so far in one turn of a request.

    Args:
        torch: the module, imported by the engine.
        turns: the request's turns; its sampling parameters are checked here.
        ends: tokens that end every text.
    """

    def __init__(
        self, torch: Any, tokenizer: Any, turns: Turns, ends: Collection[int], max_length: int
    ) -> None:
        self._torch = torch
        self._tokenizer = tokenizer
        self._turns = turns
        self._ends = ends
        self._wanted = common.sampling(turns.request)
        self._generator: Any | None = None
        self._decoder = Decoder(tokenizer, turns.prompt)
        self._stops = common.stops(turns.request)
        self._tokens: list[int] = []
        self._known: list[int] = []
        self._text = ""
        self._stopped = False
        self.most = min(turns.request.max_tokens, max_length - len(turns.prompt))
        """Number of tokens at which the text is cut."""
        self.finish: Literal["stop", "length"] | None = None
        """The reason for which the text has ended, or None if it has not."""

    def add(self, likeliest: int, logits: Any) -> int:
        """Append one token and return it. After the end of the text, return any token.

        `logits` has one float32 for each token of the vocabulary. `likeliest` is its argmax.
        """
        if self.finish is not None:
            return likeliest
        plain = self._wanted["repetition_penalty"] == 1
        if plain and self._wanted["temperature"] < common.GREEDY_BELOW:
            token = likeliest
        else:
            token = self._sample(logits)
        self._tokens.append(token)
        if token in self._ends:
            self.finish = "stop"
            return token
        before = len(self._text)
        self._text += self._decoder.add(token)
        self._known.append(len(self._text))
        end = first_stop(self._text, self._stops, before)
        if end is not None:
            self._text = self._text[:end]
            self._stopped = True
            self.finish = "stop"
        elif len(self._tokens) >= self.most:
            self.finish = "length"
        return token

    def end(self) -> Response | None:
        """Give the text, which must have ended, to the turns. Return the response to the last."""
        assert self.finish is not None
        return self._turns.add(self._text, len(self._tokens), self.finish, self._said)

    def _said(self) -> list[int]:
        if self._stopped:
            return tokens_of(self._text, self._tokens, self._known, self._encode)
        return self._tokens[: len(self._known)]  # without the one that has ended it

    def _encode(self, text: str) -> list[int]:
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return tokens

    def _sample(self, logits: Any) -> int:
        """Draw the next token, or return the likeliest if the temperature is 0."""
        torch, wanted = self._torch, self._wanted
        logits = logits.clone()
        if wanted["repetition_penalty"] != 1:
            seen = torch.tensor(sorted({*self._turns.prompt, *self._tokens}), device=logits.device)
            rows, penalty = logits[seen], wanted["repetition_penalty"]
            logits[seen] = torch.where(rows > 0, rows / penalty, rows * penalty)
        if wanted["temperature"] < common.GREEDY_BELOW:
            return int(logits.argmax())
        if wanted["seed"] >= 0 and self._generator is None:
            self._generator = torch.Generator(logits.device).manual_seed(wanted["seed"])
        kept, tokens = torch.softmax(logits / wanted["temperature"], dim=-1).sort(descending=True)
        kept = kept.where(kept >= wanted["min_p"] * kept[0], 0.0)
        if wanted["top_k"] > 0:
            kept[wanted["top_k"] :] = 0.0
        kept /= kept.sum()
        # A token stays if those before it have not yet reached top_p; the first always does.
        kept = kept.where(kept.cumsum(dim=-1) - kept < wanted["top_p"], 0.0)
        return int(tokens[torch.multinomial(kept, 1, generator=self._generator)])


def first_stop(text: str, stops: list[str], before: int) -> int | None:
    """Return the position of the stop string that is complete first, or None.

    Only characters after the first `before` can have completed one. Of two stop strings that end
    at the same character, the one listed first wins.
    """
    found = [
        (start + len(stop), order, start)
        for order, stop in enumerate(stops)
        if (start := text.find(stop, max(0, before - len(stop) + 1))) >= 0
    ]
    return min(found)[2] if found else None

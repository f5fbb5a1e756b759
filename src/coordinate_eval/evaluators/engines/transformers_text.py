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
from coordinate_eval.records import Request, Response


class Text:
    """The text that the model has written for one request so far.

    Args:
        torch: the module, imported by the engine.
        tokenizer: a `tokenizers.Tokenizer`.
        request: the request; its sampling parameters are checked here.
        ends: tokens that end every text.
        max_length: most tokens of a prompt and its output together.
    """

    def __init__(
        self, torch: Any, tokenizer: Any, request: Request, ends: Collection[int], max_length: int
    ) -> None:
        self._torch = torch
        self._request = request
        self._ends = ends
        self._wanted = common.sampling(request)
        self._generator: Any | None = None
        self._decoder = _Decoder(tokenizer, request.tokens)
        self._stops = common.stops(request)
        self._tokens: list[int] = []
        self._text = ""
        self.most = min(request.max_tokens, max_length - len(request.tokens))
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
        end = first_stop(self._text, self._stops, before)
        if end is not None:
            self._text = self._text[:end]
            self.finish = "stop"
        elif len(self._tokens) >= self.most:
            self.finish = "length"
        return token

    def response(self) -> Response:
        """Return the text as the response to its request. The text must have ended."""
        assert self.finish is not None
        return common.respond(
            self._request, text=self._text, tokens=len(self._tokens), finish=self.finish
        )

    def _sample(self, logits: Any) -> int:
        """Draw the next token, or return the likeliest if the temperature is 0."""
        torch, wanted = self._torch, self._wanted
        logits = logits.clone()
        if wanted["repetition_penalty"] != 1:
            seen = torch.tensor(
                sorted({*self._request.tokens, *self._tokens}), device=logits.device
            )
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


class _Decoder:
    """An incremental decoder of the tokens that follow a prompt."""

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

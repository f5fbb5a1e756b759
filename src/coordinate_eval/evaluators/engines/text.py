"""One text under way in the transformers engine: the next token, its characters, its end.

The rules are vLLM's, so that both engines answer alike: characters come from an incremental
decoder that knows the prompt and withholds torn UTF-8; an end token ends the text and is counted
but not written; after each token stop strings are looked for, and only then is the length.
"""
# The libraries of the extras have no types here: they may be absent while types are checked.
# ruff: noqa: ANN401

from collections.abc import Collection
from typing import Any, Literal

from coordinate_eval.evaluators.engines import common
from coordinate_eval.records import Request, Response


class Text:
    """What the model has written for one request.

    Args:
        torch: the module, imported by the engine.
        tokenizer: a `tokenizers.Tokenizer`.
        request: what to write; its sampling parameters are checked here.
        ends: tokens that end every text.
        max_length: tokens, prompt and output together.
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
        """Tokens at which the text is cut."""
        self.finish: Literal["stop", "length"] | None = None
        """Why the text has ended, or None while it has not."""

    def add(self, likeliest: int, logits: Any) -> int:
        """Write one more token and return it; once the text has ended, return any.

        `logits` are float32, one for each token of the vocabulary; `likeliest` is their argmax.
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
        """The text as the answer to its request; it must have ended."""
        assert self.finish is not None
        return common.respond(
            self._request, text=self._text, tokens=len(self._tokens), finish=self.finish
        )

    def _sample(self, logits: Any) -> int:
        """Draw the next token, or take the likeliest if the temperature is 0."""
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
    """Where to cut `text` for the stop string that is complete first; None if none is.

    Only what goes beyond the first `before` characters can have completed one. Of two that end
    at the same character, the one listed first wins.
    """
    found = [
        (start + len(stop), order, start)
        for order, stop in enumerate(stops)
        if (start := text.find(stop, max(0, before - len(stop) + 1))) >= 0
    ]
    return min(found)[2] if found else None


class _Decoder:
    """Turns tokens into characters as they come, after the tokens of a prompt."""

    def __init__(self, tokenizer: Any, prompt: list[int]) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokenizer
        self._new = DecodeStream
        self._stream = DecodeStream(ids=prompt, skip_special_tokens=False)

    def add(self, token: int) -> str:
        """The characters that this token completes: none, one or several."""
        try:
            return self._stream.step(self._tokenizer, token) or ""
        except Exception as error:
            if "Invalid prefix" not in str(error):
                raise
            # Tokens whose text changes with what follows confuse the stream: start another one.
            self._stream = self._new(skip_special_tokens=False)
            return self._stream.step(self._tokenizer, token) or ""

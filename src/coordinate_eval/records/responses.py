"""An engine's answer to a request."""

from typing import Literal

from pydantic import Field

from coordinate_eval.records.base import Record
from coordinate_eval.records.requests import Key


class Turn(Record):
    """The answer to one follow-up of a request."""

    text: str
    tokens: int
    finish: Literal["stop", "length"]


class Response(Key):
    """The answer of an engine to the request with the same key."""

    text: str | None = Field(
        default=None, description="generated text, not yet cut at stop strings"
    )
    logprob: float | None = Field(default=None, description="sum over the continuation, nats")
    greedy: bool | None = Field(
        default=None, description="greedy decoding would give the continuation"
    )
    tokens: int = Field(description="tokens generated, or scored")
    finish: Literal["stop", "length", "scored"]
    turns: list[Turn] = Field(
        # A default that is no factory would be copied deeply whenever a line is read.
        default_factory=list,
        description="the answers to its follow-ups, in order",
    )

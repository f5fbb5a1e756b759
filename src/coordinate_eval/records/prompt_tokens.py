"""The tokens of a request's prompts, and how many of them an engine has computed before."""

import itertools

from coordinate_eval.records.requests import Request

CACHE_BLOCK = 16
"""Tokens of the blocks in which an engine keeps what prompts share; vLLM's default."""


_CUT_TOKENS = 64


def prompt_lengths(request: Request) -> list[int]:
    """Return the tokens of each turn's prompt, continuation included.

    That of a later turn has the turns before it, without their answers, whose length is not known.
    """
    first = len(request.tokens) + len(request.continuation)
    return list(itertools.accumulate(map(len, request.follow_ups), initial=first))


def context_tokens(request: Request) -> int:
    """Return the tokens of context in which a request is answered as in any larger one.

    An engine generates a token after scoring, too. An answer that a stop string cut is made into
    tokens again before the next turn, perhaps into a few more.
    """
    answers = request.turns * request.max_tokens if request.max_tokens else 1
    return prompt_lengths(request)[-1] + answers + _CUT_TOKENS * len(request.follow_ups)


def largest_token(request: Request) -> int:
    """Return the largest token id that a request has, -1 if it has no tokens."""
    texts = (request.tokens, request.continuation, *request.follow_ups)
    return max(max(tokens, default=-1) for tokens in texts)


def computed_by_turns(request: Request) -> int:
    """Return how many tokens of later turns an engine need not compute: blocks of those before."""
    return sum(length // CACHE_BLOCK * CACHE_BLOCK for length in prompt_lengths(request)[:-1])


def computed_before(request: Request, before: Request | None) -> int:
    """Return how many tokens of a request an engine need not compute after the one before it.

    Those are the whole blocks with which both begin. The last token of a text is computed in any
    case, except for an item's choices of one token: these take one computation of their context.
    """
    if before is None:
        return 0
    text = [*request.tokens, *request.continuation]
    if len(request.continuation) == len(before.continuation) == 1:
        same_item = (request.task, request.doc) == (before.task, before.doc)
        if same_item and request.tokens == before.tokens:
            return len(text)
    other = [*before.tokens, *before.continuation]
    low, high = 0, min(len(other), len(text) - 1) // CACHE_BLOCK
    while low < high:  # the most blocks that are alike, by bisection: lists compare fast
        middle = (low + high + 1) // 2
        edge = middle * CACHE_BLOCK
        low, high = (middle, high) if other[:edge] == text[:edge] else (low, middle - 1)
    return low * CACHE_BLOCK

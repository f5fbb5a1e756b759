"""Conversations of two turns, and the same prompts as single requests

    python benchmarks/conversations.py --items 256

The real vLLM writes the same texts with a tiny model in three ways. The numbers are exact and the
same on every machine. Blocks of the prefix cache have 32 tokens here, and 16 on a GPU. The cache
has room for the texts of three times as many requests as run at once, as on a GPU with a large
model.

- *as trials do*: a request is a conversation, and its second turn goes in when the first has ended.
- *turn after turn*: all first turns, and when these have ended, all second ones.
- *prompts known before*: two single requests for each item, as if the first answer, which is a part
  of the second prompt, were known before. What *as trials do* takes more are the last steps, in
  which second turns are all that is left; a trial has other datasets then.

Prompts are random tokens of many lengths, the longest four times the shortest; so are the most
tokens of an answer. Every way must give the same texts, or it is an error.
"""

import argparse
import importlib
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.tiny import MAX_LENGTH, VOCABULARY, tiny_model

from coordinate_eval.evaluators.engines import vllm_writing
from coordinate_eval.evaluators.engines.base import Loading, by_name
from coordinate_eval.evaluators.engines.turns import Turns
from coordinate_eval.records import Request, RequestKind, Response

BLOCK = 32
"""Tokens of a block of the prefix cache: the fewest on a CPU."""

RUNNING = 32
"""Requests that vLLM runs at once."""

ROOM = 3 * RUNNING
"""Texts of which the cache has room for the longest."""

LONGEST = 160 + 20 + 2 * 64
"""Tokens of the longest text of two turns."""


def main() -> None:
    """Write the texts in each way and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--items", type=int, default=256, help="conversations (default 256)")
    items = max(1, parser.parse_args().items)
    importlib.import_module("torch").set_num_threads(1)
    args = {
        "max_num_seqs": RUNNING,
        "block_size": BLOCK,
        "num_gpu_blocks_override": ROOM * -(-LONGEST // BLOCK),
    }
    engine: Any = by_name("vllm").start(Loading(tiny_model(), 1, MAX_LENGTH, args))
    talks = list(conversations(items))
    second = second_turns(engine, talks)
    first = [talk.model_copy(update={"follow_ups": []}) for talk in talks]
    both = [one for pair in zip(first, second, strict=True) for one in pair]
    ways = {
        "as trials do": [talks],
        "turn after turn": [first, second],
        "prompts known before": [both],
    }
    table = Table(title=f"{items} conversations of two turns")
    table.add_column("way")
    for heading in ("steps", "ratio", "prompt tokens computed", "ratio"):
        table.add_column(heading, justify="right")
    ours: tuple[int, int] | None = None
    texts: list[tuple[int, str]] = []
    for name, runs in ways.items():
        engine._engine.reset_prefix_cache()
        before = engine.steps, engine.computed_tokens
        found = spoken([r for requests in runs for r in engine.run(iter(requests))])
        steps, computed = engine.steps - before[0], engine.computed_tokens - before[1]
        ours, texts = ours or (steps, computed), texts or found
        if found != texts:
            raise SystemExit(f"{name}: other texts")
        ratios = [f"{steps / ours[0]:.2f}", f"{computed / ours[1]:.2f}"]
        table.add_row(name, f"{steps:,}", ratios[0], f"{computed:,}", ratios[1])
    engine.close()
    Console().print(table)


def conversations(count: int) -> Iterator[Request]:
    """Yield requests of two turns."""
    dice = random.Random(1)  # noqa: S311  # lengths, not secrets
    for item in range(count):
        yield Request(
            dataset="talk",
            item=item,
            task="talk",
            doc=item,
            prompt_hash="",
            kind=RequestKind.GENERATE,
            tokens=dice.choices(range(3, VOCABULARY), k=dice.randrange(40, 160)),
            max_tokens=dice.randrange(16, 64),
            follow_ups=[dice.choices(range(3, VOCABULARY), k=20)],
        )


def second_turns(engine: Any, talks: Sequence[Request]) -> list[Request]:  # noqa: ANN401  vLLM's own
    """Return single requests for the second turns, with the prompts that the engine makes."""
    made: dict[int, Request] = {}

    class Noted(Turns):
        def add(self, *answer: Any) -> Response | None:  # noqa: ANN401  as there
            response = super().add(*answer)
            if response is None:
                changed = {"tokens": self.prompt, "follow_ups": []}
                made[self.request.item] = self.request.model_copy(update=changed)
            return response

    with mock.patch.object(vllm_writing, "Turns", Noted):
        list(engine.run(iter(talks)))
    return [made[talk.item] for talk in talks]


def spoken(responses: Sequence[Response]) -> list[tuple[int, str]]:
    """Return all texts with their items, in one order for all ways."""
    first = [(response.item, response.text or "") for response in responses]
    later = [(response.item, turn.text) for response in responses for turn in response.turns]
    return sorted(first + later)


if __name__ == "__main__":
    main()
